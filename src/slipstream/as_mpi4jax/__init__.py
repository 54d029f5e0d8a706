"""The names of mpi4jax and mpi4py, for programs that say ``import mpi4jax`` and ``from mpi4py import MPI``.

`on_path` holds the packages that Python finds: `slipstream run --mpi4jax` puts it where Python looks first. `present`
makes their modules.
"""
