"""One rank of the random test: random_rank.py SEED OPERATIONS

All ranks draw the same schedule from the seed: batches of operations on three overlapping groups. A rank skips what
its groups do not run, and draws for itself in which order it waits, and how it interleaves the groups where the batch
allows it. Every result is compared with NumPy.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from expected import numpy_dtype, reduce_arrays, same

import slipstream
from slipstream import _core
from slipstream.base.dtypes import DType, Op

MEMBERS = ((0, 1, 2, 3), (0, 1, 2), (3, 1, 2))  # the last in an order of its own
MOST = 50_000
IN_FLIGHT = 16
COARSE = (DType.F8E4M3, DType.F8E5M2, DType.Q8)  # these cannot hold every sum below
DTYPES = [t for t in DType if t not in COARSE]
FREE = ("all_reduce", "reduce_scatter", "broadcast", "reduce", "barrier", "message", "ring")
MEETING = ("all_gather", "gather", "scatter", "all_to_all")  # these exchange sizes before they return
Array = np.ndarray[Any, Any]
Check = Callable[[Any], None]


@dataclass(frozen=True)
class Operation:
    """One entry of the schedule: the same on all ranks."""

    number: int
    kind: str
    group: int
    dtype: DType
    op: Op
    count: int
    root: int  # for messages the sender
    other: int  # of messages: the receiver
    tag: int
    in_place: bool
    shared: bool  # in memory from slipstream.empty()
    async_op: bool


def schedule(seed: int, count: int) -> Iterator[tuple[bool, list[Operation]]]:
    """Batches of operations; with True those whose groups may be interleaved in any way."""
    rng = np.random.default_rng(seed)
    number = 0
    while number < count:
        free = bool(rng.random() < 0.4)
        batch = []
        for _ in range(min(int(rng.integers(1, 13)), count - number)):
            batch.append(draw(rng, number, free))
            number += 1
        yield free, batch


def draw(rng: np.random.Generator, number: int, free: bool) -> Operation:
    dtype = DTYPES[rng.integers(len(DTYPES))]
    ops = [op for op in Op if _core.reduces(dtype, op)]
    group = int(rng.integers(len(MEMBERS)))
    root, other = rng.permutation(len(MEMBERS[group]))[:2]
    kinds = FREE if free else FREE + MEETING
    size = rng.random()
    return Operation(
        number=number,
        kind=kinds[rng.integers(len(kinds))],
        group=group,
        dtype=dtype,
        op=ops[rng.integers(len(ops))],
        count=int(rng.integers(MOST + 1)) if size < 0.25 else int(MOST ** rng.random()) - int(size > 0.9),
        root=int(root),
        other=int(other),
        tag=int(rng.integers(3)),
        in_place=bool(rng.random() < 0.3),
        shared=bool(rng.random() < 0.1),
        async_op=free or bool(rng.random() < 0.6),
    )


class Data:
    """Contributions of any rank to any operation, cut from one array per dtype. Sums over 4 ranks are exact."""

    def __init__(self) -> None:
        values = np.random.default_rng(0).integers(0, 8, MOST + 1000)
        self._small = {t: values.astype(bool if t is DType.BOOL else numpy_dtype(t)) for t in DTYPES}
        self._factors = {t: (1 + values % 2).astype(numpy_dtype(t)) for t in DTYPES if t is not DType.BOOL}

    def of(self, o: Operation, member: int, count: int | None = None) -> Array:
        """What group rank ``member`` puts in; not to be written to."""
        factors = o.op is Op.PROD and o.kind in ("all_reduce", "reduce", "reduce_scatter")
        base = self._factors if factors and o.dtype is not DType.BOOL else self._small
        start = (o.number * 7 + member * 131) % 1000
        return base[o.dtype][start : start + (o.count if count is None else count)]


class Rank:
    """This process: issues operations, keeps up to IN_FLIGHT of them open, checks what they give.

    ``groups``: None for those this rank is no member of; an operation names its group by the number here.
    """

    def __init__(self, seed: Sequence[int], groups: Sequence[slipstream.Group | None], data: Data) -> None:
        self.data = data
        self.groups = groups
        self.own = np.random.default_rng((*seed, slipstream.rank()))
        self.open: list[tuple[Operation, slipstream.Work, Check]] = []
        self.waits_cut_short = 0
        self.compared = 0
        self.most_open = 0
        self.at: Operation | None = None  # what was begun or waited for last

    def run(self, free: bool, batch: list[Operation]) -> None:
        queues = [
            [o for o in batch if o.group == g] for g, group in enumerate(self.groups) if group is not None
        ]
        while any(queues):
            queues = [q for q in queues if q]
            # only the order inside a group is fixed
            queue = queues[self.own.integers(len(queues))] if free else min(queues, key=lambda q: q[0].number)
            self.at = operation = queue.pop(0)
            getattr(self, operation.kind)(operation, self.groups[operation.group])
            self.most_open = max(self.most_open, len(self.open))
            if self.open and self.own.random() < 0.4:
                self.wait_for_one(briefly=free)
            while not free and len(self.open) > IN_FLIGHT:
                self.wait_for_one()
        while len(self.open) > IN_FLIGHT:
            self.wait_for_one()

    def wait_for_one(self, briefly: bool = False) -> None:
        """Waits for any open operation; only briefly where another rank may need one first that we still owe."""
        i = int(self.own.integers(len(self.open)))
        self.at, work, check = self.open[i]
        limit = self.own.random() * 1e-3 if briefly or self.own.random() < 0.2 else None
        try:
            result = work.wait(limit)
        except slipstream.Timeout:
            if limit is None:
                raise
            self.waits_cut_short += 1
            return
        del self.open[i]
        assert work.done()
        check(result)

    def finish(self) -> None:
        while self.open:
            self.wait_for_one()

    def array(self, o: Operation, values: Array) -> Array:
        """A private copy of ``values``, now and then in shared memory."""
        if not o.shared:
            return values.copy()
        array = slipstream.empty(values.shape, values.dtype)
        array[...] = values
        return array

    def done(self, o: Operation, got: Any, check: Check) -> None:
        if o.async_op:
            self.open.append((o, got, check))
        else:
            check(got)

    def expect(self, o: Operation, expected: Array) -> Check:
        def check(got: Any) -> None:
            same(f"{o} on rank {slipstream.rank()}", got, expected)
            self.compared += 1

        return check

    def reduced(self, o: Operation, size: int) -> Array:
        return reduce_arrays([self.data.of(o, r) for r in range(size)], o.dtype, o.op)

    def all_reduce(self, o: Operation, group: slipstream.Group) -> None:
        mine = self.array(o, self.data.of(o, group.rank))
        out = mine if o.in_place else None
        got = slipstream.all_reduce(mine, o.op, out=out, group=group, async_op=o.async_op)
        self.done(o, got, self.expect(o, self.reduced(o, group.size)))

    def reduce_scatter(self, o: Operation, group: slipstream.Group) -> None:
        ends = [o.count * (r + 1) * (r + 2) // (group.size * (group.size + 1)) for r in range(group.size)]
        counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        mine = self.array(o, self.data.of(o, group.rank))
        got = slipstream.reduce_scatter(mine, o.op, counts=counts, group=group, async_op=o.async_op)
        expected = self.reduced(o, group.size)[ends[group.rank] - counts[group.rank] : ends[group.rank]]
        self.done(o, got, self.expect(o, expected))

    def broadcast(self, o: Operation, group: slipstream.Group) -> None:
        mine = self.array(o, self.data.of(o, group.rank))
        out = mine if o.in_place else None
        got = slipstream.broadcast(mine, o.root, out=out, group=group, async_op=o.async_op)
        self.done(o, got, self.expect(o, self.data.of(o, o.root)))

    def reduce(self, o: Operation, group: slipstream.Group) -> None:
        mine = self.array(o, self.data.of(o, group.rank))
        got = slipstream.reduce(mine, o.root, o.op, group=group, async_op=o.async_op)
        self.done(o, got, self.on_root(o, group, self.reduced(o, group.size)))

    def on_root(self, o: Operation, group: slipstream.Group, expected: Array) -> Check:
        if group.rank == o.root:
            return self.expect(o, expected)

        def nothing(got: Any) -> None:
            assert got is None, o

        return nothing

    def barrier(self, o: Operation, group: slipstream.Group) -> None:
        self.done(o, slipstream.barrier(group=group, async_op=o.async_op), lambda got: None)

    def ragged(self, o: Operation, member: int) -> int:
        return o.count * (member + 1) // 4

    def all_gather(self, o: Operation, group: slipstream.Group) -> None:
        mine = self.array(o, self.data.of(o, group.rank, self.ragged(o, group.rank)))
        got = slipstream.all_gather(mine, group=group, async_op=o.async_op)
        parts = [self.data.of(o, r, self.ragged(o, r)) for r in range(group.size)]
        self.done(o, got, self.expect(o, np.concatenate(parts)))

    def gather(self, o: Operation, group: slipstream.Group) -> None:
        mine = self.array(o, self.data.of(o, group.rank, self.ragged(o, group.rank)))
        got = slipstream.gather(mine, o.root, group=group, async_op=o.async_op)
        parts = [self.data.of(o, r, self.ragged(o, r)) for r in range(group.size)]
        self.done(o, got, self.on_root(o, group, np.concatenate(parts)))

    def scatter(self, o: Operation, group: slipstream.Group) -> None:
        counts = [self.ragged(o, r) // 4 for r in range(group.size)]
        whole = self.data.of(o, o.root, sum(counts))
        out = self.array(o, np.zeros(counts[group.rank], dtype=whole.dtype))
        source = whole.copy() if group.rank == o.root else out
        got = slipstream.scatter(source, o.root, out=out, group=group, async_op=o.async_op)
        first = sum(counts[: group.rank])
        self.done(o, got, self.expect(o, whole[first : first + counts[group.rank]]))

    def all_to_all(self, o: Operation, group: slipstream.Group) -> None:
        def splits(member: int) -> list[int]:
            return [o.count * ((member + p) % 3) // 12 for p in range(group.size)]

        mine = self.array(o, self.data.of(o, group.rank, sum(splits(group.rank))))
        got = slipstream.all_to_all(mine, splits=splits(group.rank), group=group, async_op=o.async_op)
        parts = []
        for r in range(group.size):
            first = sum(splits(r)[: group.rank])
            parts.append(self.data.of(o, r, sum(splits(r)))[first : first + splits(r)[group.rank]])
        self.done(o, got, self.expect(o, np.concatenate(parts)))

    def message(self, o: Operation, group: slipstream.Group) -> None:
        if group.rank == o.root:
            mine = self.array(o, self.data.of(o, o.root))
            got = slipstream.send(mine, o.other, tag=o.tag, group=group, async_op=o.async_op)
            self.done(o, got, lambda got: None)
        elif group.rank == o.other:
            out = self.array(o, np.zeros(o.count, dtype=self.data.of(o, 0).dtype))
            got = slipstream.recv(out, o.root, tag=o.tag, group=group, async_op=o.async_op)
            self.done(o, got, self.expect(o, self.data.of(o, o.root)))

    def ring(self, o: Operation, group: slipstream.Group) -> None:
        """Everybody sends to the next rank and receives from the one before."""
        left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
        out = self.array(o, np.zeros(o.count, dtype=self.data.of(o, 0).dtype))
        receiving = slipstream.recv(out, left, tag=o.tag, group=group, async_op=True)
        self.open.append((o, receiving, self.expect(o, self.data.of(o, left))))
        mine = self.array(o, self.data.of(o, group.rank))
        got = slipstream.send(mine, right, tag=o.tag, group=group, async_op=o.async_op)
        self.done(o, got, lambda got: None)


def main() -> None:
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    faulthandler.dump_traceback_later(240, exit=True)
    slipstream.init()
    groups = [slipstream.Group(members) if slipstream.rank() in members else None for members in MEMBERS]
    rank = Rank([seed], groups, Data())
    for free, batch in schedule(seed, count):
        rank.run(free, batch)
    rank.finish()
    slipstream.barrier()
    slipstream.shutdown()
    counts = {name: getattr(rank, name) for name in ("compared", "most_open", "waits_cut_short")}
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
