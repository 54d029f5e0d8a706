"""slipstream under JAX: ``import slipstream.jax as hvd``."""

from __future__ import annotations

try:
    from slipstream.faces.jax import *  # noqa: F403
    from slipstream.faces.jax import __all__ as __all__
except ModuleNotFoundError as error:
    if error.name not in ("jax", "jaxlib"):
        raise
    text = (
        "slipstream.jax needs JAX: pip install jax optax, or pip install '.[jax]' in the clone of slipstream"
    )
    raise ModuleNotFoundError(text, name=error.name) from None
