"""What programs of mpi4jax need of ``mpi4py.MPI``, on slipstream: the module `world` has its names."""
