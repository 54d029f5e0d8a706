"""One rank of the tests of overlapping memory: overlap_rank.py inputs|flight|mixed|late|groups."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

import slipstream
from slipstream.base.dtypes import DType
from slipstream.comm.collectives import addresses


def must_raise(call: Callable[[], object]) -> None:
    try:
        call()
    except ValueError as error:
        text = str(error)
    else:
        raise AssertionError("an overlap is no error")
    assert "overlap" in text, text


def inputs() -> None:
    """An input and an output that overlap in part are refused; the ways to work in place give what they must."""
    n, rank = slipstream.size(), slipstream.rank()
    room = np.zeros(1000)
    for call in (
        lambda: slipstream.all_reduce(room[:600], out=room[1:601]),
        lambda: slipstream.all_reduce(room[1:601], out=room[:600]),
        lambda: slipstream.broadcast(room[:600], out=room[100:700]),
        lambda: slipstream.reduce(room[:600], rank, out=room[100:700]),
        lambda: slipstream.reduce_scatter(room[: 100 * n], out=room[50 + 100 * rank : 150 + 100 * rank]),
    ):
        must_raise(call)
    group, dtype, each = slipstream.world(), int(DType.F64), [100] * n
    here, there = room.ctypes.data, room[50:].ctypes.data
    for call in (  # at this level, as those of NumPy have told the others something before they look
        lambda: addresses.all_gather(group, here, there, each, dtype, keep=room),
        lambda: addresses.gather(group, here, there, each, dtype, rank, keep=room),
        lambda: addresses.scatter(group, here, there, each, dtype, rank, keep=room),
        lambda: addresses.all_to_all(group, here, there, each, each, dtype, keep=room),
    ):
        must_raise(call)
    mine = np.full(100, rank + 1.0)
    expected = np.repeat(np.arange(1.0, n + 1), 100)
    gathered = np.zeros(100 * n)
    gathered[100 * rank : 100 * rank + 100] = mine
    slipstream.all_gather(gathered[100 * rank : 100 * rank + 100], out=gathered)
    assert (gathered == expected).all(), gathered[::50]
    data = np.full(100 * n, rank + 1.0)
    slipstream.reduce_scatter(data, out=data[100 * rank : 100 * rank + 100])
    assert (data[100 * rank : 100 * rank + 100] == n * (n + 1) / 2).all()
    data = expected.copy()
    slipstream.scatter(data, out=data[:100] if rank == 0 else mine)
    assert (mine == rank + 1).all()
    assert (data == expected).all()
    assert (slipstream.all_reduce(mine) == n * (n + 1) / 2).all()


def flight() -> None:
    """Works in place that are in flight together on the same memory, or on parts of it, act one after another."""
    n = slipstream.size()
    for count in (10, 5000, 400_000):
        for turn in range(10):
            data = np.ones(count)
            works = [slipstream.all_reduce(data, out=data, async_op=True) for _ in range(4)]
            half = data[count // 3 :]
            works.append(slipstream.all_reduce(half, out=half, async_op=True))
            works.append(slipstream.all_reduce(data, out=data, async_op=True))
            copy = np.empty_like(data)
            works.append(slipstream.all_reduce(data, out=copy, async_op=True))
            for work in works:
                work.wait()
            assert (data[: count // 3] == n**5).all(), (count, turn, data[:3])
            assert (half == n**6).all(), (count, turn, half[:3])
            assert (copy[: count // 3] == n**6).all(), (count, turn, copy[:3])
        grid = np.ones((count, 2))
        works = [slipstream.all_reduce(grid, out=grid, async_op=True)]
        works.append(slipstream.all_reduce(grid[:, 0], async_op=True))  # of a copy
        result = [work.wait() for work in works][1]
        assert (result == n**2).all(), (count, result[:3])
    # More than a link carries for works that have not begun: the last one is in line behind all others.
    data = np.full(500, slipstream.rank() + 1.0)
    for work in [slipstream.all_reduce(data, slipstream.MAX, out=data, async_op=True) for _ in range(1000)]:
        work.wait()
    assert (data == n).all(), data[:3]


def groups() -> None:
    """Between groups nobody knows the order: that is refused, on all ranks."""
    other = slipstream.Group(range(slipstream.size()))
    data = np.ones(400_000)
    if slipstream.rank() == 0:  # it is alone with the first until it calls the second
        slipstream.all_reduce(data, out=data, async_op=True)
    try:
        slipstream.all_reduce(data, out=data, group=other)
    except slipstream.Aborted as error:
        text = str(error)
    else:
        raise AssertionError("an overlap between groups is no error")
    assert "rank 0" in text, text
    assert "still works on" in text, text


def messages() -> None:
    """Messages of several ranks may be received into one buffer. To send from it meanwhile is refused."""
    rank, n = slipstream.rank(), slipstream.size()
    for count in (1, 5000, 400_000):
        data = np.zeros(count)
        if rank == 0:
            works = [slipstream.recv(data, peer, async_op=True) for peer in range(1, n) for _ in range(2)]
            slipstream.barrier()
            for work in works:
                work.wait()
            assert set(data.tolist()) <= {1.0, 2.0}, data[:3]
        else:
            slipstream.barrier()  # all are posted
            for _ in range(2):
                slipstream.send(np.full(count, float(rank)), 0)
    if rank == 0:
        slipstream.recv(data, 1, async_op=True)
        try:
            slipstream.send(data, 2)
        except slipstream.Aborted as error:
            text = str(error)
        else:
            raise AssertionError("memory was sent that a message is received into")
        assert "still works on" in text, text
        return
    try:
        slipstream.recv(data, 0)
    except slipstream.Aborted:
        return
    raise AssertionError("the session goes on")


def mixed() -> None:
    """So do sums and other operations."""
    n = slipstream.size()
    for count in (10, 5000, 400_000):
        for turn in range(10):
            data = np.full(count, 1.0)
            works = [slipstream.all_reduce(data, out=data, async_op=True)]
            works.append(slipstream.broadcast(data, 1, out=data, async_op=True))
            works.append(slipstream.all_reduce(data, out=data, async_op=True))
            part = data[: count // 2]
            works.append(slipstream.broadcast(part, 0, out=part, async_op=True))
            works.append(slipstream.all_reduce(part, out=part, async_op=True))
            slipstream.broadcast(np.ones(10))  # in line behind these, or not, but in its turn
            for work in works:
                work.wait()
            assert (part == n**3).all(), (count, turn, part[:3])
            assert (data[count // 2 :] == n**2).all(), (count, turn, data[-3:])


def late() -> None:
    """The time-out of an operation runs while it waits for memory that an earlier one still needs."""
    data = np.ones(400_000)
    if slipstream.rank() == 0:
        group = slipstream.world()
        slipstream.all_reduce(data, out=data, async_op=True)  # the others do not come
        address = data.ctypes.data
        count, dtype = data.size, int(DType.F64)
        work = addresses.broadcast(group, address, address, count, dtype, 0, keep=data, timeout=1.0)
        try:
            work.wait(60)
        except slipstream.Timeout as error:
            text = str(error)
        else:
            raise AssertionError("no time-out")
        assert "for the turn of broadcast(" in text, text
        assert ", behind all_reduce(" in text, text
        return
    try:
        slipstream.recv(np.ones(1), 0)
    except slipstream.Timeout:
        return
    raise AssertionError("no time-out")


slipstream.init()
{"inputs": inputs, "flight": flight, "late": late, "groups": groups, "mixed": mixed, "messages": messages}[
    sys.argv[1]
]()
slipstream.shutdown()
