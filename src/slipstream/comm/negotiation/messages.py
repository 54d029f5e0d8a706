"""What ranks tell each other in a round of negotiation: a message of each, to all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from slipstream.base.dtypes import DType
from slipstream.base.errors import Timeout
from slipstream.base.own_names import own_name
from slipstream.comm.collectives import addresses
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import JOIN

__all__ = [
    "ALGORITHM",
    "ENDLESS",
    "UnderWay",
    "await_others",
    "exchange",
    "messages_of",
    "only_joins",
]

ENDLESS = 1e9  # seconds
ALGORITHM, _CHUNK = "bruck", 64 << 10  # of n ranks each sends 2 log2 n messages at most, whatever they cost
_SOON = 1.0  # seconds; what takes longer gets a title
_SLOT = 512  # bytes of a rank's message, with its length; longer ones come in a second step
_LENGTH = 4


class UnderWay(Protocol):
    """What needs the other ranks."""

    def done(self) -> bool:
        """Whether `wait` would return at once."""

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for its end, and raises its error; Timeout after ``timeout`` seconds."""

    def entitle(self, title: str) -> None:
        """Has reports of waits call it this."""


def only_joins(keys: Iterable[tuple[str, str]]) -> bool:
    """Whether a rank waits for nothing but the others to join: it waits as long as these go on without it.

    A rank that has died ends that wait, too.
    """
    return {kind for kind, _ in keys} == {JOIN}


def messages_of(group: Group) -> Group:
    """The group for `exchange` among these ranks. Its all_gather is not the one of the ranks' data."""
    found = group.beside("rounds")
    found.use("all_gather", ALGORITHM, _CHUNK)
    return found


def exchange(
    group: Group,
    mine: bytes,
    what: Callable[[], str],
    endless: bool = False,
    meanwhile: Callable[[], None] | None = None,
) -> list[bytes]:
    """Every rank's message, in order of rank. ``what``: what this rank waits for, which reports say if that takes long.

    ``endless``: this rank waits for the others without a limit and a warning until all have come. ``meanwhile``: is
    called about once a second while it waits for them.
    """
    first = len(mine).to_bytes(_LENGTH, "little") + mine[: _SLOT - _LENGTH]
    slots = _gather(group, first, _SLOT, what, endless, meanwhile)
    lengths = [int.from_bytes(slot[:_LENGTH], "little") for slot in slots]
    if max(lengths) > _SLOT - _LENGTH:
        slots = _gather(group, bytes(_LENGTH) + mine, max(lengths) + _LENGTH, what)
    return [slot[_LENGTH : _LENGTH + length] for slot, length in zip(slots, lengths, strict=True)]


def _gather(
    group: Group,
    mine: bytes,
    nbytes: int,
    what: Callable[[], str],
    endless: bool = False,
    meanwhile: Callable[[], None] | None = None,
) -> list[bytes]:
    source, target = np.zeros(nbytes, np.uint8), np.empty(group.size * nbytes, np.uint8)
    source[: len(mine)] = np.frombuffer(mine, np.uint8)
    memory = source.ctypes.data, target.ctypes.data
    work = addresses.all_gather(
        group,
        *memory,
        [nbytes] * group.size,
        DType.U8,
        name=own_name("negotiation"),
        keep=(source, target),
        timeout=ENDLESS if endless else 0.0,
    )
    await_others(work, what, endless, meanwhile)
    text = target.tobytes()
    return [text[at : at + nbytes] for at in range(0, len(text), nbytes)]


def await_others(
    work: UnderWay,
    title: Callable[[], str],
    endless: bool = False,
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """Waits for what needs the other ranks. ``title``: what reports call it, here and on other ranks, if it takes long.

    ``endless``: it has no limit. ``meanwhile``: see `exchange`.
    """
    entitled = False
    while not entitled or (meanwhile is not None and not work.done()):
        try:
            work.wait(_SOON)
            return
        except Timeout:
            pass  # or it has ended by its own limit: the next wait says so
        if not entitled and not work.done():
            work.entitle(title())
        elif meanwhile is not None:
            meanwhile()
        entitled = True
    work.wait(ENDLESS if endless else None)
