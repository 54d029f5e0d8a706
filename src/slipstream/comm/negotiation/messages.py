"""What ranks tell each other in a round of negotiation: a message of each, to all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from slipstream.base.dtypes import DType
from slipstream.base.errors import Timeout
from slipstream.comm.collectives import addresses
from slipstream.comm.membership.group import Group

__all__ = ["WARN", "WARN_AGAIN", "UnderWay", "await_others", "exchange"]

WARN, WARN_AGAIN = 10.0, 60.0  # seconds without an answer of all ranks
_SLOT = 512  # bytes of a rank's message, with its length; longer ones come in a second step
_LENGTH = 4

_log = logging.getLogger("slipstream.negotiation")


class UnderWay(Protocol):
    """What needs the other ranks."""

    def done(self) -> bool:
        """Whether `wait` would return at once."""

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for its end, and raises its error; Timeout after ``timeout`` seconds."""


def exchange(group: Group, mine: bytes, what: Callable[[], str]) -> list[bytes]:
    """Every rank's message, in order of rank. ``what``: for a warning, if that takes long."""
    slots = _gather(group, len(mine).to_bytes(_LENGTH, "little") + mine[: _SLOT - _LENGTH], _SLOT, what)
    lengths = [int.from_bytes(slot[:_LENGTH], "little") for slot in slots]
    if max(lengths) > _SLOT - _LENGTH:
        slots = _gather(group, bytes(_LENGTH) + mine, max(lengths) + _LENGTH, what)
    return [slot[_LENGTH : _LENGTH + length] for slot, length in zip(slots, lengths, strict=True)]


def _gather(group: Group, mine: bytes, nbytes: int, what: Callable[[], str]) -> list[bytes]:
    source, target = np.zeros(nbytes, np.uint8), np.empty(group.size * nbytes, np.uint8)
    source[: len(mine)] = np.frombuffer(mine, np.uint8)
    memory = source.ctypes.data, target.ctypes.data
    work = addresses.all_gather(
        group, *memory, [nbytes] * group.size, DType.U8, name="negotiation", keep=(source, target)
    )
    await_others(work, what)
    text = target.tobytes()
    return [text[at : at + nbytes] for at in range(0, len(text), nbytes)]


def await_others(work: UnderWay, what: Callable[[], str]) -> None:
    """Waits for what needs the other ranks, and warns when that takes long: of ``what``, in words."""
    seconds = WARN
    while True:
        try:
            work.wait(seconds)
            return
        except Timeout as late:
            if work.done():
                work.wait()  # it has ended meanwhile, or by its own limit
                return
            _log.warning("%s: %s", what(), late)
            seconds = WARN_AGAIN
