"""A rank that calls collectives on arrays of all kinds again and again, which go the short way where they may."""

from __future__ import annotations

import contextlib
import enum
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import slipstream
from slipstream import _core
from slipstream.base.dtypes import Op
from slipstream.comm.collectives.copies_back import OPEN
from slipstream.comm.collectives.joined import (
    collect_unusual,
    divide_unusual,
    exchange_unusual,
    gather_unusual,
)
from slipstream.comm.collectives.work import Work
from slipstream.comm.membership import job

COUNT = 5


class Tag(int, enum.Enum):
    """An integer whose text is none."""

    SOME = 101


NUMBERS = ["e", "f", "d", "b", "B", "h", "H", "i", "I", "q", "Q"]


def short_way(collective: str, unusual: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """The collective without its Python: NotImplemented, and nothing has happened, if it would need that."""
    return _core.QuickEntry(collective, vars(job), OPEN, Op, unusual)


class Surely:
    """The short way of a collective whose short blocks follow their sizes, or else the public function.

    Such a call is refused while the engine still puts the operation before it away, so no test may count on one alone.
    """

    def __init__(self, collective: str, unusual: Callable[..., Any] | None = None) -> None:
        self.alone = short_way(collective, unusual)
        self._public = getattr(slipstream, collective)
        self._taken = {True: 0, False: 0}  # calls that went the short way, and that did not

    def __call__(self, *args: Any, **named: Any) -> Any:
        found = self.alone(*args, **named)
        self._taken[found is not NotImplemented] += 1
        return self._public(*args, **named) if found is NotImplemented else found

    def check(self) -> None:
        """Fails unless most calls went the short way."""
        assert self._taken[True] > self._taken[False], self._taken


ALL_REDUCE = short_way("all_reduce")


def goes_the_short_way(x: np.ndarray, out: np.ndarray, op: Op = Op.SUM) -> bool:
    return ALL_REDUCE(x, op, out=out) is not NotImplemented


def values() -> None:
    size, rank = slipstream.size(), slipstream.rank()
    for code in [*NUMBERS, "l", "L"]:
        x = np.arange(COUNT).astype(code) + np.array(rank, code)
        for op, wanted in (
            (Op.SUM, size * x + sum(range(size)) - size * rank),
            (Op.MAX, x - rank + size - 1),
        ):
            kept = x.copy()
            for _ in range(3):
                np.testing.assert_array_equal(slipstream.all_reduce(x, op), wanted.astype(code))
                np.testing.assert_array_equal(x, kept)
            out = np.empty_like(x)
            assert goes_the_short_way(x, out, op)
            np.testing.assert_array_equal(out, wanted.astype(code))
            assert slipstream.all_reduce(out, op, out=out) is out  # in place
    truth = np.array([rank == 0, True, False])
    for _ in range(2):
        np.testing.assert_array_equal(slipstream.all_reduce(truth, Op.MAX), [True, True, False])
    for shape in [(), (0,), (1,)]:
        for _ in range(2):
            found = slipstream.all_reduce(np.ones(shape))
            assert found.shape == shape
            np.testing.assert_array_equal(found, np.full(shape, size))


def others() -> None:
    """What is refused has done nothing, so the ranks stay in step."""
    x = np.ones(COUNT)
    slipstream.all_reduce(x)
    read_only, memory = x.copy(), np.ones(COUNT + 1)
    read_only.flags.writeable = False
    assert goes_the_short_way(read_only, np.empty_like(x))
    for source, out in [
        (x, read_only),
        (x, np.ones(COUNT + 1)),
        (x, np.ones(COUNT, np.float32)),
        (x, np.ones(COUNT, np.int64)),
        (x, np.ones((1, COUNT))),
        (x.reshape(1, COUNT), np.ones((1, COUNT))),
        (np.ones(2 * COUNT)[::2], np.ones(COUNT)),
        (x, np.ones(2 * COUNT)[::2]),
        (x.astype(">f8"), x.astype(">f8")),
        (memory[1:], memory[:-1]),
        (np.ones(1 << 12), np.ones(1 << 12)),  # of a size that was not there before
        (x.astype("F"), x.astype("F")),
        (x.astype("M8[s]"), x.astype("M8[s]")),
    ]:
        assert not goes_the_short_way(source, out), (source.dtype, out.dtype, source.shape, out.shape)
    assert not goes_the_short_way(x, np.empty_like(x), Op.PROD)  # not called before
    np.testing.assert_array_equal(slipstream.all_reduce(x), np.full(COUNT, slipstream.size()))
    slipstream.world().use("all_reduce", "ring", 1 << 12)
    assert not goes_the_short_way(x, np.empty_like(x))
    for _ in range(2):
        np.testing.assert_array_equal(slipstream.all_reduce(x), np.full(COUNT, slipstream.size()))


def moved() -> None:
    """broadcast, all_gather, reduce_scatter and barrier: against NumPy, by both ways, with and without ``out``."""
    size, rank = slipstream.size(), slipstream.rank()
    takes, scatters = map(short_way, ("broadcast", "reduce_scatter"))
    gathers = Surely("all_gather")
    for code in ["f", "d", "B", "q"]:
        for count in (1, 7, 13, 1000):
            x = np.arange(count).astype(code)
            for round in range(3):
                root = round % size
                got = slipstream.broadcast(x + np.array(rank, code), root)
                np.testing.assert_array_equal(got, x + np.array(root, code))
                into = x + np.array(rank, code)
                assert slipstream.broadcast(into, root=root, out=into) is into
                np.testing.assert_array_equal(into, x + np.array(root, code))
                assert round < size or takes(into, root, out=np.empty_like(into)) is not NotImplemented
                # the ranks may differ in what they bring
                rows = np.full(count + 2 * rank, rank, code)
                wanted = np.concatenate([np.full(count + 2 * r, r, code) for r in range(size)])
                np.testing.assert_array_equal(slipstream.all_gather(rows), wanted)
                all_rows = np.empty_like(wanted)
                assert slipstream.all_gather(rows, out=all_rows) is all_rows
                np.testing.assert_array_equal(all_rows, wanted)
                if round:
                    assert gathers(rows, out=all_rows) is all_rows
                parts = np.arange(count + size).astype(code)
                mine = np.array_split(parts * np.array(size, code), size)[rank]
                np.testing.assert_array_equal(slipstream.reduce_scatter(parts), mine)
                own = np.empty_like(mine)
                assert slipstream.reduce_scatter(parts, Op.SUM, out=own) is own
                np.testing.assert_array_equal(own, mine)
                assert scatters(parts, out=own) is own
    gathers.check()
    for _ in range(3):
        assert slipstream.barrier() is None
    assert short_way("barrier")() is None
    assert short_way("barrier")(group=slipstream.world()) is None


def reduced() -> None:
    """reduce against NumPy: by both ways, and by different ones on different ranks, to every root."""
    size, rank = slipstream.size(), slipstream.rank()
    short = short_way("reduce")
    for code in ["f", "d", "b", "q"]:
        for count in (1, 7, 1000, 20011):
            x = (np.arange(count) % 40 + rank).astype(code)
            for root in range(size):
                for op, wanted in (
                    (Op.SUM, (size * (np.arange(count) % 40) + sum(range(size))).astype(code)),
                    (Op.MIN, (np.arange(count) % 40).astype(code)),
                ):
                    for reduces in (slipstream.reduce, short, slipstream.reduce if rank else short):
                        got = reduces(x, root, op)
                        into = np.zeros_like(x)
                        back = reduces(x, op=op, root=root, out=into)
                        assert (back is into) == (rank == root), back
                        if rank == root:
                            np.testing.assert_array_equal(got, wanted)
                            np.testing.assert_array_equal(back, wanted)
                        else:
                            assert got is None, got
                            assert not into.any()
    x = np.ones(COUNT)
    slipstream.reduce(x)
    assert (short(x) is None) == (rank != 0)
    with_table = np.ones((COUNT, 2))
    for call in [
        lambda: short(x, 0, "sum"),
        lambda: short(x, Op.SUM),
        lambda: short(x, 0, Op.SUM, x),
        lambda: short(x, size),
        lambda: short(x, 4096),
        lambda: short(x, -1),
        lambda: short(x, 0, Op.PROD),
        lambda: short(x, prescale=2.0),
        lambda: short(x, name="named"),
        lambda: short(with_table),
        lambda: short(x, out=with_table) if rank == 0 else NotImplemented,
    ]:
        assert call() is NotImplemented
    got = slipstream.reduce(x, postscale=0.5)
    assert rank != 0 or (got == size / 2).all()


def moved_unusually() -> None:
    """What is refused has done nothing; what the ranks find out together goes on as it would have from Python."""
    size, rank = slipstream.size(), slipstream.rank()
    gathers, takes, scatters = map(short_way, ("all_gather", "broadcast", "reduce_scatter"))
    x = np.ones(COUNT)
    exchanges = short_way("all_to_all")
    for _ in range(2):
        slipstream.broadcast(x, out=x)
        slipstream.all_gather(x)
        slipstream.all_to_all(np.ones(size * COUNT))
        slipstream.reduce_scatter(np.ones(size * COUNT))
    whole = np.ones(size * COUNT)
    table = np.ones((COUNT, 2))
    read_only = whole.copy()
    read_only.flags.writeable = False
    for call in [
        lambda: takes(x, root=np.int64(0)),
        lambda: takes(x, root=-1),
        lambda: takes(x, 0, name="named"),
        lambda: takes(x.tolist()),
        lambda: takes(table),
        lambda: takes(x, out=np.ones(COUNT + 1)),
        lambda: takes(x, x, x),
        lambda: takes(),
        lambda: gathers(table),
        lambda: gathers(whole[:COUNT], out=whole),
        lambda: gathers(x, out=read_only),
        lambda: gathers(x, out=whole.astype("f")),
        lambda: gathers(x, async_op=True),
        lambda: exchanges(np.ones(size * COUNT + 1)) if size > 1 else NotImplemented,
        lambda: exchanges(whole, out=whole),
        lambda: exchanges(whole, splits=[COUNT] * size),
        lambda: exchanges(np.ones((size, COUNT))),
        lambda: scatters(whole, out=whole[:COUNT]),
        lambda: scatters(whole, "sum"),
        lambda: scatters(whole, counts=[COUNT] * size),
        lambda: scatters(np.ones(999)),
        lambda: scatters(np.ones((size, COUNT))),
        lambda: short_way("barrier")(x),
    ]:
        assert call() is NotImplemented
    # a block of one rank is long: all of them go on
    for many in (size - 1, 0):
        rows = np.full(5000 if rank == many else 3, rank, np.float64)
        wanted = np.concatenate([np.full(5000 if r == many else 3, r, np.float64) for r in range(size)])
        np.testing.assert_array_equal(slipstream.all_gather(rows), wanted)
    kinds = [np.ones(3, np.float32 if rank == 0 else np.float64), np.ones((3, 1) if rank == 0 else 3)]
    for one in kinds if size > 1 else []:
        with contextlib.suppress(ValueError):
            slipstream.all_gather(one)
            raise AssertionError("arrays that do not fit were joined")
    np.testing.assert_array_equal(slipstream.all_gather(x), whole)
    np.testing.assert_array_equal(Surely("all_gather")(x), whole)
    assert takes(x) is not NotImplemented


def moved_at_length() -> None:
    """all_gather and all_to_all of blocks too long to follow their sizes: alike, and then not on all ranks."""
    size, rank = slipstream.size(), slipstream.rank()
    unusual: list[str] = []

    def rest(name: str) -> Callable[..., Any]:
        def goes_on(group: object, x: np.ndarray, out: np.ndarray | None, told: _core.Told) -> Any:
            unusual.append(name)
            return (exchange_unusual if name == "all_to_all" else gather_unusual)(group, x, out, told)

        return goes_on

    gathers, exchanges = (Surely(name, rest(name)) for name in ("all_gather", "all_to_all"))
    for code in ["f", "d", "B", "q"]:
        for count in (3, 20011, 100003):
            x = (np.arange(count) % 100 + rank).astype(code)
            wanted = np.concatenate([(np.arange(count) % 100 + r).astype(code) for r in range(size)])
            blocks = np.concatenate([x + np.array(r * size, code) for r in range(size)])
            theirs = np.concatenate(
                [wanted[r * count :][:count] + np.array(rank * size, code) for r in range(size)]
            )
            np.testing.assert_array_equal(slipstream.all_gather(x), wanted)
            np.testing.assert_array_equal(slipstream.all_to_all(blocks), theirs)
            for _ in range(2):
                np.testing.assert_array_equal(gathers(x), wanted)
                np.testing.assert_array_equal(exchanges(blocks), theirs)
                out = np.zeros_like(wanted)
                assert gathers(x, out=out) is out
                np.testing.assert_array_equal(out, wanted)
                out[:] = 0
                assert exchanges(blocks, out=out) is out
                np.testing.assert_array_equal(out, theirs)
    gathers.check()
    exchanges.check()
    assert not unusual
    # one rank goes by way of Python, the others do not
    np.testing.assert_array_equal((slipstream.all_gather if rank == 0 else gathers)(x), wanted)
    if rank == 0:
        np.testing.assert_array_equal(slipstream.all_to_all(blocks, splits=[count] * size), theirs)
    else:
        np.testing.assert_array_equal(exchanges(blocks), theirs)
    later_one = slipstream.all_to_all(blocks, async_op=True) if rank == size - 1 else None
    got = exchanges(blocks) if later_one is None else later_one.wait()
    np.testing.assert_array_equal(got, theirs)
    assert not unusual
    # rows of another number on one rank, and sizes that none has asked for
    rows = np.full(20011 + (rank == 0), rank, np.float64)
    wanted = np.concatenate([np.full(20011 + (r == 0), r, np.float64) for r in range(size)])
    np.testing.assert_array_equal(gathers(rows), wanted)
    parts = np.full(size * (20011 + (rank == 0)), rank, np.float64)
    np.testing.assert_array_equal(exchanges(parts), wanted)
    assert unusual == ["all_gather", "all_to_all"]
    # rank 0 sends and receives equal blocks and so knows them from now on; ranks 1 and 2 do not
    if size >= 3:
        base = 30011
        splits = [base] * size
        if rank in (1, 2):
            splits[rank], splits[3 - rank] = base + 1, base - 1
        slipstream.all_to_all(np.full(base * size, rank, np.float64), splits=splits)
        wanted = np.repeat(np.arange(size, dtype=np.float64), base)
        np.testing.assert_array_equal(exchanges(np.full(base * size, rank, np.float64)), wanted)
    mixed = np.ones(size * 20011, np.float32 if rank == 0 else np.float64)
    for call in (slipstream.all_gather, slipstream.all_to_all) if size > 1 else ():
        with contextlib.suppress(ValueError):
            call(mixed)
            raise AssertionError("arrays that do not fit were joined")


def rooted() -> None:
    """gather and scatter, short and long, against NumPy: by both ways, and by different ones on different ranks."""
    size, rank = slipstream.size(), slipstream.rank()
    unusual: list[str] = []

    def rest(name: str, function: Callable[..., Any]) -> Surely:
        def goes_on(*args: Any) -> Any:
            unusual.append(name)
            return function(*args)

        return Surely(name, goes_on)

    gathers, scatters = rest("gather", collect_unusual), rest("scatter", divide_unusual)
    for code in ["f", "d", "B", "q"]:
        for count in (1, 7, 1000, 20011, 100003):
            for root in range(size):
                x = (np.arange(count) % 100 + rank).astype(code)
                wanted = np.concatenate([(np.arange(count) % 100 + r).astype(code) for r in range(size)])
                everything = (np.arange(size * count) % 100).astype(code)
                mine = everything[rank * count :][:count]
                for collect, divide in (
                    (slipstream.gather, slipstream.scatter),
                    (gathers, scatters),
                    (slipstream.gather, slipstream.scatter) if rank == 0 else (gathers, scatters),
                ):
                    got = collect(x, root)
                    assert (got is not None) == (rank == root)
                    into = np.zeros_like(wanted)
                    back = collect(x, root=root, out=into)
                    assert (back is into) == (rank == root)
                    for one in (got, back) if rank == root else ():
                        np.testing.assert_array_equal(one, wanted)
                    out = np.zeros_like(mine)
                    assert divide(everything if rank == root else None, root, out=out) is out
                    np.testing.assert_array_equal(out, mine)
    assert not unusual
    # rows of other numbers: short ones are put together at once, long ones ask Python
    for count, way in ((5, []), (30011, ["gather", "scatter"])):
        rows = np.full(count + 2 * rank, rank, np.float64)
        wanted = np.concatenate([np.full(count + 2 * r, r, np.float64) for r in range(size)])
        got = gathers(rows, size - 1)
        assert rank != size - 1 or np.array_equal(got, wanted)
        rows[:] = -1
        scatters(wanted, size - 1, out=rows)
        np.testing.assert_array_equal(rows, np.full(count + 2 * rank, rank, np.float64))
        assert set(unusual) <= set(way)
    # what does not fit on some rank is an error on all of them
    kinds = np.ones(3, np.float32 if rank == 0 else np.float64)
    short = np.ones(3 * size - 1)
    for call in (
        lambda: slipstream.gather(kinds),
        lambda: slipstream.scatter(np.ones(3 * size), out=kinds),
        lambda: slipstream.scatter(short, out=np.ones(3)),
        lambda: slipstream.scatter(short.astype("f"), out=np.ones(3)),
    )[0 if size > 1 else 2 :]:
        with contextlib.suppress(ValueError):
            call()
            raise AssertionError("arrays that do not fit were joined or divided")
    gathers.check()
    scatters.check()
    # what is refused has done nothing
    quick_gather, quick_scatter = gathers.alone, scatters.alone
    x, whole = np.ones(COUNT), np.ones(size * COUNT)
    read_only = x.copy()
    read_only.flags.writeable = False
    for refused in (
        lambda: quick_gather(x, np.int64(0)),
        lambda: quick_gather(x, size),
        lambda: quick_gather(x, 0, name="named"),
        lambda: quick_gather(whole.reshape(size, COUNT)),
        lambda: quick_gather(x.tolist()),
        lambda: quick_gather(x, out=[1.0]),
        lambda: quick_gather(whole[:COUNT], out=whole) if rank == 0 else NotImplemented,
        lambda: quick_gather(x, out=whole.astype("f")) if rank == 0 else NotImplemented,
        lambda: quick_scatter(whole),
        lambda: quick_scatter(whole, out=read_only),
        lambda: quick_scatter(whole, out=whole[:COUNT]) if rank == 0 else NotImplemented,
        lambda: quick_scatter(whole, out=np.ones((1, COUNT))),
        lambda: quick_scatter(whole, -1, out=x),
        lambda: quick_scatter(whole.tolist(), out=x) if rank == 0 else NotImplemented,
    ):
        assert refused() is NotImplemented


def messages() -> None:
    """send and recv round a ring, short and long, by both ways, and by different ones on different ranks."""
    size, rank = slipstream.size(), slipstream.rank()
    if size == 1:
        return
    target, source = (rank + 1) % size, (rank - 1) % size
    quick_send, quick_recv = short_way("send", Work), short_way("recv", Work)
    quick = quick_send, quick_recv
    slow = slipstream.send.__wrapped__, slipstream.recv.__wrapped__  # type: ignore[attr-defined]
    evens = slipstream.Group([r for r in range(size) if r % 2 == 0]) if rank % 2 == 0 else None
    for code in ["f", "d", "B", "q"]:
        for shape in [(), (1,), (7,), (3, 5), (20011,), (2, 3, 50001)]:
            values = (np.arange(np.prod(shape, dtype=int)) % 100).reshape(shape)
            x = np.array(values + rank, code, copy=True)
            wanted = np.array(values + source, code)
            for tag in (0, 5):
                for send, recv in (slow, quick, slow if rank == 0 else quick, (slow[0], quick[1])):
                    into = np.zeros_like(x)
                    work = send(x, target, tag=tag, async_op=True)
                    assert recv(into, source, tag=tag) is into
                    assert work.wait() is None
                    np.testing.assert_array_equal(into, wanted)
                    into = np.zeros_like(x)
                    received = recv(into, src=source, tag=tag, async_op=True)
                    assert send(x, dst=target, tag=tag, async_op=False) is None
                    assert received.wait() is into
                    np.testing.assert_array_equal(into, wanted)
    # many under way, some of them with a tag of their own: they keep their order
    parts = [np.full(9, 10 * rank + i) for i in range(8)]
    works = [quick_send(part, target, tag=5 * (i % 2), async_op=True) for i, part in enumerate(parts)]
    for i in [1, 3, 0, 2, 5, 4, 7, 6]:
        np.testing.assert_array_equal(quick_recv(np.zeros(9, int), source, tag=5 * (i % 2)), 10 * source + i)
    for work in works:
        work.wait()
    if evens is not None and evens.size > 1:  # its ranks count otherwise
        there, here = (evens.rank + 1) % evens.size, (evens.rank - 1) % evens.size
        for send, recv in (slow, quick):
            work = send(np.full(3, rank), there, group=evens, async_op=True)
            np.testing.assert_array_equal(recv(np.zeros(3, int), here, group=evens), evens.ranks[here])
            work.wait()
    x, read_only = np.ones(COUNT), np.ones(COUNT)
    read_only.flags.writeable = False
    for refused in (
        lambda: quick_send(x),
        lambda: quick_send(x, rank),
        lambda: quick_send(x, -1),
        lambda: quick_send(x, size),
        lambda: quick_send(x, np.int64(target)),
        lambda: quick_send(x, src=target),
        lambda: quick_send(x, target, 0),
        lambda: quick_send(x, target, tag=-1),
        lambda: quick_send(x, target, tag=6),
        lambda: quick_send(x, target, tag=True),
        lambda: quick_send(x, target, async_op=1),
        lambda: quick_send(x, target, out=x),
        lambda: quick_send(x.tolist(), target),
        lambda: quick_send(np.ones((4, 4)).T, target),
        lambda: quick_recv(read_only, source),
        lambda: quick_recv(x, dst=source),
        lambda: quick_recv(np.ones(2 * COUNT)[::2], source),
        lambda: quick_recv(x.astype(">f8"), source),
        lambda: quick_recv(x.astype("M8[s]"), source),
    ):
        assert refused() is NotImplemented
    tags_of_other_kinds(slipstream.Group(range(size)), target, source)
    slipstream.world().use("all_reduce", "ring", 1 << 12)  # every plan is asked anew
    for known in (False, True):
        work = slipstream.send(x, target, tag=5, async_op=True)
        if known:
            assert quick_recv(np.zeros(COUNT), source, tag=5) is not NotImplemented
        else:
            assert quick_recv(np.zeros(COUNT), source, tag=5) is NotImplemented
            slipstream.recv(np.zeros(COUNT), source, tag=5)
        work.wait()
    # tags beyond those that are known without Python
    for tag in (-1, 1 << 16, (1 << 40) + 1):
        work = slipstream.send(x, target, tag=tag, async_op=True)
        np.testing.assert_array_equal(slipstream.recv(np.zeros(COUNT), source, tag=tag), 1.0)
        work.wait()
    for tag in range(3000):
        work = slipstream.send(x, target, tag=tag, async_op=True)
        slipstream.recv(np.zeros(COUNT), source, tag=tag)
        work.wait()
    assert goes_the_short_way_soon(np.ones(123456))


def tags_of_other_kinds(group: slipstream.Group, target: int, source: int) -> None:
    """A wrong tag harms no later message, and equal integers of whatever kind are one tag."""
    x, odd = np.ones(COUNT), group.rank % 2 == 1
    for wrong in (np.False_, np.True_, 0.0, 1j, "0", None, [0]):
        for call in (slipstream.send, slipstream.recv):
            with contextlib.suppress(TypeError):
                call(x, target if call is slipstream.send else source, tag=wrong, group=group)
                raise AssertionError(f"{wrong!r} was taken for a tag")
    for tag, same in [
        (0, False),
        (1, True),
        (77, np.int8(77)),
        (-3, np.int32(-3)),
        (78, np.uint16(78)),
        (101, Tag.SOME),
        (79, np.array(79)),
    ]:
        for _ in range(2):
            work = slipstream.send(x, target, tag=same if odd else tag, group=group, async_op=True)
            got = slipstream.recv(np.zeros(COUNT), source, tag=tag if odd else same, group=group)
            np.testing.assert_array_equal(got, x)
            work.wait()


def goes_the_short_way_soon(x: np.ndarray) -> bool:
    """Messages with many tags leave room for others."""
    slipstream.all_reduce(x)
    return goes_the_short_way(x, np.empty_like(x))


def forgotten() -> None:
    """Another thread has the group forget its plans while a scatter waits for the other ranks."""
    size, rank = slipstream.size(), slipstream.rank()
    x, out, token = np.arange(size * COUNT, dtype="d"), np.zeros(COUNT), np.zeros(1)
    beside = slipstream.Group(range(size))
    for _ in range(2):
        slipstream.scatter(x, out=out)
    go = threading.Event()

    def forget() -> None:
        go.wait(60)
        slipstream.world().quick.clear()
        if size > 1:
            slipstream.send(token, 1, group=beside)

    if rank == 0:
        thread = threading.Thread(target=forget)
        thread.start()
        interval = sys.getswitchinterval()
        sys.setswitchinterval(60)  # so the thread runs when the scatter waits, not sooner
        go.set()
        slipstream.scatter(x, out=out)
        sys.setswitchinterval(interval)
        thread.join()
    else:
        if rank == 1:
            slipstream.recv(token, 0, group=beside)
        slipstream.scatter(x, out=out)
    np.testing.assert_array_equal(out, x[rank * COUNT :][:COUNT])
    for root in (0.0, "0", None):
        with contextlib.suppress(TypeError):
            slipstream.scatter(x, root, out=out)
            raise AssertionError("a root that is no number was taken")


def later() -> None:
    """A call that comes while one before it still has to copy back what it gives."""
    memory = np.ones(2 * COUNT)
    work = slipstream.all_reduce(memory[::2], async_op=True)
    x = np.ones(COUNT)
    for _ in range(3):
        np.testing.assert_array_equal(slipstream.all_reduce(x), np.full(COUNT, slipstream.size()))
    np.testing.assert_array_equal(work.wait(), np.full(COUNT, slipstream.size()))


slipstream.init()
values()
others()
moved()
reduced()
moved_unusually()
moved_at_length()
rooted()
messages()
forgotten()
later()
