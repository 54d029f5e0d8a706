"""Runs the plans of all ranks in memory, one event at a time in a random order, and checks what it can see.

For orders it does not happen to take, see ``order``.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slipstream.plan.order import PlanError, match
from slipstream.plan.steps import Kind, Plan, Space

__all__ = ["Array", "Outcome", "Reads", "bytes_per_rank", "equal_cut", "simulate"]

Array = NDArray[Any]
Reads = Literal["early", "late", "mixed"]
Table = Sequence[int]  # offsets in elements: block b is [table[b], table[b+1])


@dataclass(frozen=True)
class Outcome:
    """``outputs[r]``: OUT of rank r, 1-d. ``sent[r]``: bytes that rank r sent."""

    outputs: list[Array]
    sent: list[int]


def equal_cut(count: int, blocks: int) -> list[int]:
    """Return the default table: block b is ``[b*count//blocks, (b+1)*count//blocks)``."""
    return [b * count // blocks for b in range(blocks + 1)]


def bytes_per_rank(plan: Plan, nbytes: int) -> int:
    """Return the bytes that ``plan`` sends when its buffer of ``nbytes`` bytes is cut equally."""
    cut = equal_cut(nbytes, plan.blocks)
    return sum(cut[s.block + s.count] - cut[s.block] for s in plan.steps if s.kind == Kind.SEND)


@dataclass(eq=False)
class _Block:
    """The memory of one block of one space: elements, and which of them have been written."""

    data: Array
    written: NDArray[np.bool_]


@dataclass
class _Message:
    parts: list[Array]
    blocks: list[_Block]  # read late: the memory that must not change before the message is consumed
    late: bool


class _Run:
    """The state of a simulation. A runnable item is (rank, step, chunk)."""

    def __init__(
        self,
        plans: Sequence[Plan],
        memory: list[dict[Space, list[_Block]]],
        chunks: int,
        reads: Reads,
        seed: int,
        combine: Callable[[Array, Array], Array],
        finish: Callable[[Array], Array],
    ) -> None:
        self.plans, self.memory, self.reads = plans, memory, reads
        self.combine, self.finish = combine, finish
        self.partner = match(plans)
        self.random = random.Random(seed)
        sizes = [len(b.data) for spaces in memory for blocks in spaces.values() for b in blocks]
        self.chunks = chunks
        self.chunk_size = max(1, -(-max(sizes) // chunks))
        self.sent = [0] * len(plans)
        self.waits = {
            (rank, index, chunk): len(step.after)
            for rank, plan in enumerate(plans)
            for index, step in enumerate(plan.steps)
            for chunk in range(chunks)
        }
        self.followers: list[dict[int, list[int]]] = [defaultdict(list) for _ in plans]
        for rank, plan in enumerate(plans):
            for index, step in enumerate(plan.steps):
                for earlier in step.after:
                    self.followers[rank][earlier].append(index)
        self.runnable: list[tuple[int, int, int]] = []
        self.armed: set[tuple[int, int, int]] = set()
        self.posted: dict[tuple[int, int, int], _Message] = {}  # by the receive it is for
        self.being_read: dict[tuple[int, int], int] = defaultdict(int)  # (id of block, chunk) -> late sends

    def run(self) -> None:
        """Take runnable items in random order until none is left; PlanError if steps are left then."""
        for item, waits in self.waits.items():
            if waits == 0:
                self._ready(item)
        left = len(self.waits)
        self.left = left
        while self.runnable:
            k = self.random.randrange(len(self.runnable))
            self.runnable[k], self.runnable[-1] = self.runnable[-1], self.runnable[k]
            self._execute(self.runnable.pop())
        if self.left:
            rank, index, chunk = min(self.armed or (i for i, waits in self.waits.items() if waits > 0))
            raise PlanError(f"deadlock: step {index} of rank {rank} waits for ever in chunk {chunk}")

    def _ready(self, item: tuple[int, int, int]) -> None:
        rank, index, _ = item
        if self.plans[rank].steps[index].kind in (Kind.RECV, Kind.RECV_REDUCE) and item not in self.posted:
            self.armed.add(item)
        else:
            self.runnable.append(item)

    def _done(self, item: tuple[int, int, int]) -> None:
        rank, index, chunk = item
        self.left -= 1
        for follower in self.followers[rank].get(index, ()):
            waiting = (rank, follower, chunk)
            self.waits[waiting] -= 1
            if self.waits[waiting] == 0:
                self._ready(waiting)

    def _slices(self, rank: int, space: Space, item: tuple[int, int, int]) -> list[tuple[_Block, slice]]:
        _, index, chunk = item
        step = self.plans[rank].steps[index]
        part = slice(chunk * self.chunk_size, (chunk + 1) * self.chunk_size)
        return [(block, part) for block in self.memory[rank][space][step.block : step.block + step.count]]

    def _read(self, rank: int, space: Space, item: tuple[int, int, int]) -> list[Array]:
        found = []
        for block, part in self._slices(rank, space, item):
            if not block.written[part].all():
                raise PlanError(f"step {item[1]} of rank {rank} reads {space.name} before anything is there")
            found.append(block.data[part])
        return found

    def _write(self, item: tuple[int, int, int], values: Sequence[Array]) -> None:
        rank, index, chunk = item
        space = self.plans[rank].steps[index].dst
        for (block, part), value in zip(self._slices(rank, space, item), values, strict=True):
            if self.being_read[id(block), chunk]:
                raise PlanError(f"step {index} of rank {rank} overwrites what a send still reads")
            if len(value) != len(block.data[part]):
                raise PlanError(
                    f"step {index} of rank {rank} gets {len(value)} elements, not its block's size"
                )
            block.data[part] = value
            block.written[part] = True

    def _execute(self, item: tuple[int, int, int]) -> None:
        rank, index, _ = item
        step = self.plans[rank].steps[index]
        if step.kind == Kind.SEND:
            self._post(item)
            return
        if step.kind == Kind.FINISH:
            self._write(item, [self.finish(x) for x in self._read(rank, step.dst, item)])
        elif step.kind == Kind.COPY:
            values = self._read(rank, step.src, item)
            if self._slices(rank, step.src, item) != self._slices(rank, step.dst, item):  # not onto itself
                self._write(item, values)
        elif step.kind == Kind.REDUCE:
            operands = zip(self._read(rank, step.dst, item), self._read(rank, step.src, item), strict=True)
            self._write(item, [self.combine(a, b) for a, b in operands])
        else:
            self._consume(item)
        self._done(item)

    def _post(self, item: tuple[int, int, int]) -> None:
        rank, index, chunk = item
        step = self.plans[rank].steps[index]
        parts = self._read(rank, step.src, item)
        late = self.reads == "late" or (self.reads == "mixed" and self.random.random() < 0.5)
        self.sent[rank] += sum(part.nbytes for part in parts)
        blocks = [block for block, _ in self._slices(rank, step.src, item)] if late else []
        for block in blocks:
            self.being_read[id(block), chunk] += 1
        message = _Message(parts if late else [part.copy() for part in parts], blocks, late)
        peer, receive = self.partner[rank, index]
        target = (peer, receive, chunk)
        self.posted[target] = message
        if target in self.armed:
            self.armed.remove(target)
            self.runnable.append(target)
        if not late:
            self._done(item)

    def _consume(self, item: tuple[int, int, int]) -> None:
        rank, index, chunk = item
        step = self.plans[rank].steps[index]
        message = self.posted.pop(item)
        values = message.parts
        if step.kind == Kind.RECV_REDUCE:
            own = self._read(rank, step.src, item)
            if [len(a) for a in own] != [len(b) for b in values]:
                raise PlanError(f"step {index} of rank {rank} receives blocks of other sizes than its own")
            pairs = zip(values, own, strict=True) if step.peer < rank else zip(own, values, strict=True)
            values = [self.combine(a, b) for a, b in pairs]
        self._write(item, values)
        for block in message.blocks:
            self.being_read[id(block), chunk] -= 1
        if message.late:
            sender, send = self.partner[rank, index]
            self._done((sender, send, chunk))


def _memory(
    values: Array, in_table: Table, out_table: Table, blocks: int, in_place: bool
) -> dict[Space, list[_Block]]:
    if len(in_table) != blocks + 1 or len(out_table) != blocks + 1 or in_table[-1] != len(values):
        raise ValueError("a table has one offset per block and one, and ends at the number of elements")

    def empty(size: int) -> _Block:
        return _Block(np.zeros(size, values.dtype), np.zeros(size, np.bool_))

    sizes_in, sizes_out = np.diff(in_table).tolist(), np.diff(out_table).tolist()
    source = [
        _Block(values[in_table[b] : in_table[b + 1]].copy(), np.ones(sizes_in[b], np.bool_))
        for b in range(blocks)
    ]
    result = [source[b] if in_place and n and n == sizes_in[b] else empty(n) for b, n in enumerate(sizes_out)]
    return {Space.IN: source, Space.OUT: result, Space.TMP: [empty(n) for n in sizes_in]}


def _same(values: Array) -> Array:
    return values


def simulate(
    plans: Sequence[Plan],
    inputs: Sequence[Array],
    *,
    in_tables: Sequence[Table] | None = None,
    out_tables: Sequence[Table] | None = None,
    in_place: bool = False,
    reads: Reads = "mixed",
    chunks: int = 1,
    seed: int = 0,
    combine: Callable[[Array, Array], Array] = np.add,
    finish: Callable[[Array], Array] = _same,
) -> Outcome:
    """Run ``plans[r]`` on ``inputs[r]`` (1-d, one dtype) for all ranks r.

    ``in_tables[r]``, ``out_tables[r]``: offsets in elements of the blocks of IN and OUT, ``blocks + 1`` each;
    by default IN is cut equally and OUT is like IN. ``in_place``: IN and OUT blocks of equal sizes are the
    same memory. ``reads``: when a send reads: as it starts, when the receiver consumes it, or either at
    random. ``chunks``: into how many the largest block is cut. ``seed`` draws the order. ``combine`` is (+),
    ``finish`` the post-scale.

    Raises PlanError if the plans do not match, deadlock, read what nothing wrote, overwrite what a send
    reads, receive a wrong size, or leave part of OUT unwritten; ValueError for tables that do not fit.
    """
    blocks = plans[0].blocks
    tables_in = in_tables or [equal_cut(len(values), blocks) for values in inputs]
    tables_out = out_tables or tables_in
    memory = [
        _memory(values, tables_in[rank], tables_out[rank], blocks, in_place)
        for rank, values in enumerate(inputs)
    ]
    run = _Run(plans, memory, chunks, reads, seed, combine, finish)
    run.run()
    for rank, spaces in enumerate(memory):
        if not all(block.written.all() for block in spaces[Space.OUT]):
            raise PlanError(f"rank {rank} leaves part of its OUT unwritten")
    return Outcome(
        [np.concatenate([block.data for block in spaces[Space.OUT]]) for spaces in memory], run.sent
    )
