"""One rank of a job at a limit: extremes_rank.py CASE (the functions below)."""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import slipstream
from slipstream.comm.membership.group import Group

PIECE = 64 << 20


def outstanding() -> None:
    """100,000 works are submitted before the first is waited for."""
    count = 100_000
    data = np.arange(3.0 * count, dtype=np.float32).reshape(count, 3) % 1000
    mine = data * (slipstream.rank() + 1)
    works = [slipstream.all_reduce(row, out=row, async_op=True) for row in mine]
    for work in works:
        work.wait()
    total = slipstream.size() * (slipstream.size() + 1) / 2
    assert np.array_equal(mine, data * np.float32(total))


def groups_and_threads() -> None:
    """16 groups, each used by a thread of its own."""
    me, n = slipstream.rank(), slipstream.size()
    groups = [Group(list(np.roll(range(n), i))) for i in range(16)]
    wrong: list[str] = []

    def use(number: int) -> None:
        for turn in range(20):
            size = (number * 977 + turn * 4099) % 20_000 + 1
            found = slipstream.all_reduce(
                np.full(size, 100 * number + turn + me, np.int64), group=groups[number]
            )
            if not (found == n * (100 * number + turn) + n * (n - 1) // 2).all():
                wrong.append(f"group {number}, turn {turn}: {found[:3]}")

    threads = [threading.Thread(target=use, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]


class Turns:
    """Lets the threads of a group call in one order, the same on all ranks."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._next = 0
        self._changed = threading.Condition()

    def take(self, thread: int, call: Callable[[], slipstream.Work]) -> slipstream.Work:
        with self._changed:
            assert self._changed.wait_for(lambda: self._next == thread, 100.0), (thread, self._next)
            work = call()
            self._next = (thread + 1) % self._threads
            self._changed.notify_all()
        return work


def groups_of_many_threads() -> None:
    """16 groups, each used by 16 threads at once: collectives in one order, and messages with a tag for each thread."""
    me, n, many = slipstream.rank(), slipstream.size(), 16
    groups = [Group(list(np.roll(range(n), i))) for i in range(many)]
    turns = [Turns(many) for _ in groups]
    wrong: list[str] = []
    done: list[tuple[int, int]] = []

    def use(number: int, thread: int) -> None:
        group = groups[number]
        for turn in range(3):
            value, size = 10_000 * number + 100 * thread + turn, (thread * 977 + turn * 4099) % 5_000 + 1
            mine = np.full(size, value + me, np.int64)
            work = turns[number].take(
                thread, lambda mine=mine: slipstream.all_reduce(mine, group=group, async_op=True)
            )
            right, left = (group.rank + 1) % n, (group.rank - 1) % n
            sending = slipstream.send(mine, right, tag=thread, group=group, async_op=True)
            got = slipstream.recv(np.empty(size, np.int64), left, tag=thread, group=group)
            sending.wait()
            if not (got == value + group.ranks[left]).all():
                wrong.append(f"group {number}, thread {thread}, turn {turn}: received {got[:3]}")
            if not (work.wait() == n * value + n * (n - 1) // 2).all():
                wrong.append(f"group {number}, thread {thread}, turn {turn}: {work.wait()[:3]}")
        done.append((number, thread))

    threads = [threading.Thread(target=use, args=(g, t)) for g in range(many) for t in range(many)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong, wrong[:3]
    assert len(done) == many * many


def holds(data: np.ndarray[Any, Any], value: int) -> bool:
    """Whether every element has that value, a piece at a time: a mask of all would take as much memory again."""
    return all((data[i : i + PIECE] == value).all() for i in range(0, len(data), PIECE))


def large() -> None:
    """Operations on 5 GiB: more than 2^32 bytes, and no multiple of anything."""
    count = (5 << 30) + 12_345
    data = np.full(count, slipstream.rank() + 1, np.uint8)
    data[-7:] = 10 * (slipstream.rank() + 1)
    slipstream.all_reduce(data, out=data)
    assert holds(data[:-7], 3)
    assert (data[-7:] == 30).all()
    data[-1] = slipstream.rank()
    slipstream.broadcast(data, 1, out=data)
    assert data[-1] == 1
    if slipstream.rank() == 0:
        data[1 << 32] = 77
        slipstream.send(data, 1)
    else:
        slipstream.recv(data, 0)
        assert data[1 << 32] == 77
        assert data[(1 << 32) - 1] == data[(1 << 32) + 1] == 3


def little_memory() -> None:
    """Rank 1 may not map much more memory; what it is refused ends nothing."""
    if slipstream.rank() == 1:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
        try:
            slipstream.empty(1 << 30, np.uint8)
        except (MemoryError, slipstream.SlipstreamError) as error:
            print(f"refused: {error}", flush=True)
    for count in (1, 3000, 4 << 20):
        assert (slipstream.all_reduce(np.ones(count, np.float32)) == slipstream.size()).all()


def little_shared_memory() -> None:
    """/dev/shm has 4 KiB."""
    found = os.statvfs("/dev/shm")
    assert found.f_blocks * found.f_frsize <= 4096
    for count in (1, 3000, 4 << 20):
        data = slipstream.empty(count, np.float32)
        data[:] = 1
        assert (slipstream.all_reduce(data, out=data) == slipstream.size()).all()
        assert (slipstream.all_reduce(np.ones(count, np.float32)) == slipstream.size()).all()


slipstream.init()
globals()[sys.argv[1]]()
slipstream.barrier()
print("passed", flush=True)
slipstream.shutdown()
