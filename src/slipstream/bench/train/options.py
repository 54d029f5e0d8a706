"""What a measurement is to be: given by the command, handed to the ranks as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PLAIN", "REDUCING", "RING", "Options"]

PLAIN = "plain"  # the contender that exchanges nothing
RING = "slipstream-ring"  # the one that has our ring exchange all, whatever reducers there are
REDUCING = ("slipstream", "slipstream-horovod")  # those that use reducers where there are any


@dataclass(frozen=True)
class Options:
    """``contenders`` beside plain, ours first; ``seconds`` of delayed compute, and ``batch`` samples, a rank and step.

    ``repeats`` turns of ``steps`` steps each; ``warmup`` steps before them; ``optimizer`` is none or sgd.
    ``inject_error`` names a contender one of whose results is spoilt. Prices: of a host, and of a reducer, an hour.
    """

    model: str
    contenders: Sequence[str]
    compute: str = "delay"
    seconds: float = 0.0
    batch: int | None = None
    bucket_mb: float = 25.0
    optimizer: str = "none"
    repeats: int = 10
    steps: int = 3
    warmup: int = 3
    inject_error: str = ""
    worker_price: float = 0.0
    reducer_price: float = 0.0
