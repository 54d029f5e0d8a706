"""What a contender is: something that binds a collective to memory and returns calls of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

__all__ = ["ALGORITHM", "Bound", "Call", "Contender", "Place", "Unsupported"]


ALGORITHM = "slipstream/"  # before the name of an algorithm: slipstream, but with this one whatever the size


class Unsupported(Exception):
    """The library has no such operation, or not for this dtype."""


@dataclass(frozen=True)
class Place:
    """Where a rank is, as libraries that find each other by other means than slipstream must know."""

    rank: int
    size: int
    local_rank: int
    one_host: bool
    interface: str | None


@dataclass(frozen=True)
class Call:
    """One call: the collective ``name`` from ``source`` into ``target`` (1-dimensional, of one dtype).

    The same array twice means in place. Where a rank gives or gets nothing the array is empty. ``op`` is a name
    of `slipstream.bench.collective.catalogue.OPS`, ``root`` a rank.
    """

    name: str
    source: NDArray[Any]
    target: NDArray[Any]
    op: str
    root: int

    @property
    def in_place(self) -> bool:
        """Whether the result takes the place of the input."""
        return self.source is self.target


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Bound:
    """A call to be timed, which returns when the result is there.

    ``before`` and ``after`` are not timed: they bring the arrays of the call to where the library works, and back.
    """

    call: Callable[[], object]
    before: Callable[[], object] = _nothing
    after: Callable[[], object] = _nothing


@dataclass(frozen=True)
class Contender:
    """A library in this process.

    ``bind`` raises `Unsupported`, as the call itself may raise what the library raises. ``settle`` is called by
    all ranks after each batch, untimed: afterwards nothing of this library is under way.
    """

    name: str
    bind: Callable[[Call], Bound]
    settle: Callable[[], object] = _nothing
    close: Callable[[], object] = _nothing
    versions: Mapping[str, str] = field(default_factory=dict)
    shared: bool = False  # measured on memory of `slipstream.empty`
