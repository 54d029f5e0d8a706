"""The Horovod API for PyTorch: ``import slipstream.torch as hvd``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipstream.base.misspelt import did_you_mean

try:
    from slipstream.faces.torch import *  # noqa: F403
    from slipstream.faces.torch import __all__ as __all__
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    text = "slipstream.torch needs PyTorch: pip install torch, or pip install '.[torch]' in the clone of slipstream"
    raise ModuleNotFoundError(text, name="torch") from None

# What Horovod has and slipstream does not, and what to do meanwhile.
NOT_YET = {
    "elastic": "survivors of a failure go on by slipstream.world().shrink() (docs/failures.md)",
}


if not TYPE_CHECKING:  # to which a name that is not there is an error

    def __getattr__(name: str) -> Any:
        known = name in NOT_YET
        hint = f": slipstream does not have it yet; {NOT_YET[name]}" if known else did_you_mean(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
