"""A back end of Ray's collective groups: ``slipstream.ray.register()``, then ``backend="slipstream"``."""

from __future__ import annotations

try:
    from slipstream.faces.ray import *  # noqa: F403
    from slipstream.faces.ray import __all__ as __all__
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "ray":
        raise
    text = (
        "slipstream.ray needs a Ray that takes back ends for its collective groups: pip install 'ray>=2.56'"
    )
    raise ModuleNotFoundError(text, name="ray") from None
