"""The vocabulary of plans: kinds of steps, memory spaces, steps, and the plan of one rank.

docs/architecture.md, "Plans", is the contract. NumPy is imported only to encode a plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Draft", "Kind", "Plan", "Space", "Step"]


class Kind(IntEnum):
    """What a step does."""

    SEND = 0
    RECV = 1
    RECV_REDUCE = 2
    COPY = 3
    REDUCE = 4
    FINISH = 5


class Space(IntEnum):
    """Which memory a step means. In place, IN and OUT are the same; TMP has the layout of IN."""

    IN = 0
    OUT = 1
    TMP = 2


_TALKING = (Kind.SEND, Kind.RECV, Kind.RECV_REDUCE)


class Step(NamedTuple):
    """One step on blocks ``block .. block + count - 1``, run chunk by chunk when those in ``after`` are done.

    ``peer`` is a rank of the group, -1 for local steps.
    """

    kind: Kind
    peer: int
    block: int
    count: int  # type: ignore[assignment]  # the contract's name; tuple.count is of no use here
    after: tuple[int, ...]
    src: Space
    dst: Space


@dataclass(frozen=True)
class Plan:
    """The steps of one rank of ``size`` for one collective, in units of ``blocks`` blocks of each space.

    Raises ValueError if a step names a peer, a block or an earlier step that does not exist.
    """

    collective: str
    algorithm: str
    rank: int
    size: int
    blocks: int
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size or self.blocks < 1:
            raise ValueError(f"rank {self.rank} of {self.size} with {self.blocks} blocks cannot be")
        for index, step in enumerate(self.steps):
            wrong = self._objection(index, step)
            if wrong:
                raise ValueError(
                    f"{self.collective}/{self.algorithm}, rank {self.rank}, step {index}: {wrong}"
                )

    def _objection(self, index: int, step: Step) -> str:
        if step.kind in _TALKING:
            if not 0 <= step.peer < self.size or step.peer == self.rank:
                return f"peer {step.peer} is no other rank"
        elif step.peer != -1:
            return "a local step has no peer"
        if step.block < 0 or step.count < 1 or step.block + step.count > self.blocks:
            return f"blocks {step.block}+{step.count} of {self.blocks}"
        if any(not 0 <= earlier < index for earlier in step.after):
            return f"waits for {step.after}, not all earlier steps"
        return ""

    def encode(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the plan as the native executor takes it.

        First an int32 array [steps, 7]: kind, peer, block, count, src, dst, number of steps waited for; then
        the indices of those steps, concatenated, int32.
        """
        import numpy as np

        rows = np.array(
            [(s.kind, s.peer, s.block, s.count, s.src, s.dst, len(s.after)) for s in self.steps], np.int32
        )
        waits = [earlier for step in self.steps for earlier in step.after]
        return rows.reshape(len(self.steps), 7), np.array(waits, np.int32)


class Draft:
    """A plan being written: each method appends a step and returns its index, for later steps to wait for."""

    def __init__(self, collective: str, algorithm: str, rank: int, size: int, blocks: int) -> None:
        self.rank = rank
        self.size = size
        self.blocks = blocks
        self._names = (collective, algorithm)
        self._steps: list[Step] = []

    def send(self, peer: int, block: int, src: Space, *, count: int = 1, after: Iterable[int] = ()) -> int:
        """Send ``src`` to ``peer``."""
        return self._add(Kind.SEND, peer, block, count, after, src, src)

    def recv(self, peer: int, block: int, dst: Space, *, count: int = 1, after: Iterable[int] = ()) -> int:
        """Receive from ``peer`` into ``dst``."""
        return self._add(Kind.RECV, peer, block, count, after, dst, dst)

    def recv_reduce(
        self, peer: int, block: int, src: Space, dst: Space, *, count: int = 1, after: Iterable[int] = ()
    ) -> int:
        """Receive from ``peer``; ``dst`` becomes ``src`` (+) what arrived."""
        return self._add(Kind.RECV_REDUCE, peer, block, count, after, src, dst)

    def copy(self, block: int, src: Space, dst: Space, *, count: int = 1, after: Iterable[int] = ()) -> int:
        """Copy ``src`` to ``dst``."""
        return self._add(Kind.COPY, -1, block, count, after, src, dst)

    def reduce(self, block: int, src: Space, dst: Space, *, count: int = 1, after: Iterable[int] = ()) -> int:
        """Make ``dst`` ``dst`` (+) ``src``."""
        return self._add(Kind.REDUCE, -1, block, count, after, src, dst)

    def finish(self, block: int, dst: Space, *, count: int = 1, after: Iterable[int] = ()) -> int:
        """Apply the operation's post-scale to ``dst``."""
        return self._add(Kind.FINISH, -1, block, count, after, dst, dst)

    def _add(
        self, kind: Kind, peer: int, block: int, count: int, after: Iterable[int], src: Space, dst: Space
    ) -> int:
        self._steps.append(Step(kind, peer, block, count, tuple(sorted(set(after))), src, dst))
        return len(self._steps) - 1

    def plan(self) -> Plan:
        """Return the finished, checked plan."""
        collective, algorithm = self._names
        return Plan(collective, algorithm, self.rank, self.size, self.blocks, tuple(self._steps))
