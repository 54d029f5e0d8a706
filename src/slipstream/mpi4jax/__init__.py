"""mpi4jax's functions on slipstream: ``import slipstream.mpi4jax as mpi4jax``, and `MPI` for ``mpi4py.MPI``."""

from __future__ import annotations

try:
    from slipstream.faces.jax.mpi import *  # noqa: F403
    from slipstream.faces.jax.mpi import __all__ as _functions
except ModuleNotFoundError as error:
    if error.name not in ("jax", "jaxlib"):
        raise
    text = "slipstream.mpi4jax needs JAX: pip install jax, or pip install '.[jax]' in the clone of slipstream"
    raise ModuleNotFoundError(text, name=error.name) from None

from slipstream.faces.mpi import module as MPI

__all__ = ["MPI", *_functions]
