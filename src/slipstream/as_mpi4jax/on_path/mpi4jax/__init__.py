"""slipstream in the place of mpi4jax: `slipstream run --mpi4jax` puts this folder before all others."""

try:
    from slipstream.as_mpi4jax.present import stand_in
except ModuleNotFoundError as error:
    if error.name != "slipstream":
        raise
    import sys

    text = f"slipstream stands in for mpi4jax here, but {sys.executable} does not have it: install slipstream there"
    raise ModuleNotFoundError(text, name="slipstream") from None

stand_in(__name__)
