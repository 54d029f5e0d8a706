"""One rank of the tests of single copy: single_copy_rank.py CASE [FOLDER], where CASE is a function below."""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import slipstream
from slipstream.base.dtypes import DType
from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.work import Work

SIZES = ((16 << 10) + 3, (64 << 10) + 1, (1 << 20) - 5, (5 << 20) + 4097)
LARGE = 64 << 20


def data(rank: int, size: int) -> np.ndarray[Any, Any]:
    return np.resize(np.arange(251, dtype=np.uint8), size) + np.uint8(rank)


def same(what: str, got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    assert got.shape == expected.shape, what
    assert (got == expected).all(), what


def met() -> None:
    """Has links to all ranks, and waits until it is known on them who can be read."""
    for _ in range(20):
        slipstream.all_gather(np.zeros(20 << 10, dtype=np.uint8))
        slipstream.barrier()


def statistics() -> None:
    found = slipstream.link_statistics()
    print(json.dumps([(link.single_copy, link.single_copied) for link in found]), flush=True)


def movements() -> None:
    slipstream.init()
    rank, n = slipstream.rank(), slipstream.size()
    met()
    for size in SIZES:
        every = [data(r, size) for r in range(n)]
        mine = every[rank].copy()
        same("all_gather", slipstream.all_gather(mine), np.concatenate(every))
        ragged = mine[: size * (rank + 1) // n]
        joined = np.concatenate([every[r][: size * (r + 1) // n] for r in range(n)])
        same("ragged all_gather", slipstream.all_gather(ragged), joined)
        root = size % n
        same("broadcast", slipstream.broadcast(mine, root), every[root])
        got = slipstream.gather(mine, root)
        if rank == root:
            same("gather", got, np.concatenate(every))
        out = np.empty(size, dtype=np.uint8)
        slipstream.scatter(np.concatenate(every) if rank == root else None, root, out=out)
        same("scatter", out, every[rank])
        got = slipstream.all_to_all(np.concatenate([data(rank + p, size) for p in range(n)]))
        same("all_to_all", got, np.concatenate([data(r + rank, size) for r in range(n)]))
        place = np.concatenate([data(rank + p, size) for p in range(n)])
        slipstream.all_to_all(place, out=place)
        same("all_to_all in place", place, got)
        if n > 1:
            into = np.empty_like(mine)
            receiving = slipstream.recv(into, (rank - 1) % n, async_op=True)
            slipstream.send(mine, (rank + 1) % n)
            receiving.wait()
            same("send/recv", into, every[(rank - 1) % n])
        same("the source is untouched", mine, every[rank])
        total = np.sum([one.astype(np.int32) for one in every], axis=0)
        same("all_reduce", slipstream.all_reduce(mine.astype(np.int32)), total.astype(np.int32))
    statistics()
    slipstream.shutdown()


def sums() -> None:
    """Reductions read the peers' private memory, too: in place and apart, more ranks than one may ask at a time."""
    slipstream.init()
    rank, n = slipstream.rank(), slipstream.size()
    met()
    before = sum(link.single_copied for link in slipstream.link_statistics())
    for size in ((1 << 20) - 5, (3 << 20) + 4097):
        every = [data(r, size).astype(np.int32) for r in range(n)]
        total = np.sum(every, axis=0, dtype=np.int32)
        mine = every[rank].copy()
        same("all_reduce", slipstream.all_reduce(mine), total)
        same("the source is untouched", mine, every[rank])
        same("all_reduce in place", slipstream.all_reduce(mine, out=mine), total)
        rows = np.concatenate([data(rank + p, size) for p in range(n)]).astype(np.int32)
        part = np.sum([data(r + rank, size) for r in range(n)], axis=0, dtype=np.int32)
        same("reduce_scatter", slipstream.reduce_scatter(rows), part)
        floats = every[rank].astype(np.float32)
        mean = slipstream.all_reduce(floats, op="avg")
        np.testing.assert_allclose(mean, np.mean(every, axis=0), rtol=1e-6)
    print(json.dumps(sum(link.single_copied for link in slipstream.link_statistics()) - before), flush=True)
    slipstream.shutdown()


def ends_at_a_page() -> None:
    """The last byte that is sent is the last one that is mapped."""
    slipstream.init()
    rank, n = slipstream.rank(), slipstream.size()
    met()
    size = 1 << 20
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mine = np.frombuffer(memory, dtype=np.uint8)[-(size - 4097) :]
    mine[:] = data(rank, mine.size)
    same("all_gather", slipstream.all_gather(mine), np.concatenate([data(r, mine.size) for r in range(n)]))
    statistics()
    slipstream.shutdown()


def lost() -> None:
    """All gather again and again, until the test ends one of them."""
    slipstream.init()
    rank = slipstream.rank()
    met()
    mine = data(rank, LARGE)
    out = np.empty(LARGE * slipstream.size(), dtype=np.uint8)
    for i in range(1000):
        out[:] = 0
        try:
            slipstream.all_gather(mine, out=out)
        except slipstream.SlipstreamError as error:
            mine[:] = 255  # the memory is the caller's again
            found = {"error": type(error).__name__, "rank": getattr(error, "rank", None)}
            print(json.dumps(found), flush=True)
            return
        same("all_gather", out, np.concatenate([data(r, LARGE) for r in range(slipstream.size())]))
        if i == 1:
            (Path(sys.argv[2]) / f"running{rank}").touch()


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.003)  # a poll of files and counters


def lent() -> int:
    return slipstream.link_statistics()[0].single_copied


def ahead() -> None:
    """What rank 0 sends has left before rank 1 calls `recv`, and stays right; other messages go past it."""
    slipstream.init()
    rank, file = slipstream.rank(), Path(sys.argv[2]) / "has-left"
    met()
    tags = {1: (64 << 10) + 1, 2: (1 << 20) - 5, 3: (5 << 20) + 4097}
    if rank == 0:
        before = lent()
        works = [slipstream.send(data(tag, size), 1, tag=tag, async_op=True) for tag, size in tags.items()]
        wait_for(lambda: lent() - before >= 2 << 20)  # of the longest as much as may be under way
        slipstream.send(data(0, 3), 1, tag=9)
        file.touch()
        for work in works:
            work.wait()
    else:
        wait_for(file.exists)
        for tag, size in ((9, 3), *reversed(tags.items())):
            into = np.zeros(size, dtype=np.uint8)
            slipstream.recv(into, 0, tag=tag)
            same(f"tag {tag}", into, data(tag % 9, size))
    slipstream.barrier()
    statistics()
    slipstream.shutdown()


def unread() -> None:
    """Rank 1 never calls `recv`: what rank 0 has sent ends by its limit, although nobody waits for it."""
    slipstream.init()
    rank, file = slipstream.rank(), Path(sys.argv[2]) / "over"
    met()
    if rank != 0:
        return wait_for(file.exists)
    time.sleep(0.3)  # the engine's thread has nothing to do, and sleeps without a limit
    work = slipstream.send(data(0, 256 << 10), 1, async_op=True)
    wait_for(work.done)
    file.touch()
    try:
        work.wait()
    except slipstream.SlipstreamError as error:
        print(json.dumps({"error": type(error).__name__}), flush=True)


def held_back() -> None:
    """What lies in shared memory, and what is short, does not leave without end before it is asked for."""
    slipstream.init()
    rank, what = slipstream.rank(), sys.argv[2]
    met()
    group, size, many = slipstream.world(), 1 << 20, 300
    mine, shared = data(rank, size), slipstream.empty(size, np.uint8)
    counts = [size, 16000]

    def begun(sync: bool) -> Work:
        src = mine.ctypes.data
        if what == "shared":
            place = shared.ctypes.data
            return addresses.broadcast(group, src, place, size, DType.U8, 0, keep=(mine, shared), sync=sync)
        place, parts = shared.ctypes.data, two.ctypes.data
        return addresses.scatter(group, parts, place, counts, DType.U8, 0, keep=(two, shared), sync=sync)

    def occasions() -> None:
        """Each round has both engines look at what they may do: so many could have left, however slow they are."""
        word = np.zeros(1)
        for _ in range(2 * many):
            if rank == 0:
                slipstream.send(word, 1)
                slipstream.recv(word, 1)
            else:
                slipstream.recv(word, 0)
                slipstream.send(word, 0)

    two = data(0, sum(counts))
    if rank == 0:
        works = [begun(sync=False) for _ in range(many)]
        occasions()
        print(json.dumps({"done": sum(work.done() for work in works)}), flush=True)
        slipstream.send(np.zeros(1), 1)
        for work in works:
            work.wait()
    else:
        occasions()
        slipstream.recv(np.zeros(1), 0)  # rank 0 has counted: until then, nothing is taken
        for _ in range(many):
            begun(sync=True)
        expected = data(0, size) if what == "shared" else two[size:]
        same(what, shared[: expected.size], expected)
    slipstream.shutdown()


def ended_ahead() -> None:
    """Rank 0 ends after its message has left, and before rank 1 has called `recv`."""
    slipstream.init()
    rank, folder = slipstream.rank(), Path(sys.argv[2])
    met()
    if rank == 0:
        before, mine = lent(), data(0, 1 << 20)
        work = slipstream.send(mine, 1, tag=2, async_op=True)
        wait_for(lambda: lent() - before >= mine.size)
        slipstream.send(data(0, 3), 1, tag=1)
        wait_for((folder / "arrived").exists)
        del work
        os._exit(0)
    small = np.zeros(3, dtype=np.uint8)
    slipstream.recv(small, 0, tag=1)
    same("what came behind", small, data(0, 3))
    (folder / "arrived").touch()
    wait_for((folder / "ended").exists)
    try:
        slipstream.recv(np.zeros(1 << 20, dtype=np.uint8), 0, tag=2)
    except slipstream.SlipstreamError as error:
        print(json.dumps({"error": type(error).__name__, "rank": getattr(error, "rank", None)}), flush=True)


def reused() -> None:
    """Rank 1 does not take what is sent; rank 0's call ends by a time-out, and it uses its array again."""
    slipstream.init()
    rank = slipstream.rank()
    met()
    mine = data(rank, 8 << 20)
    if rank == 0:
        work = slipstream.send(mine, 1, async_op=True)
        try:
            work.wait(timeout=0.3)
        except slipstream.SlipstreamError:
            slipstream.world().abort("it takes too long")
        mine[:] = 255
        (Path(sys.argv[2]) / "reused").touch()
        return
    deadline = time.monotonic() + 60
    while not (Path(sys.argv[2]) / "reused").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    into = np.zeros_like(mine)
    try:
        slipstream.recv(into, 0)
        same("what came", into, data(0, into.size))
    except slipstream.SlipstreamError as error:
        print(json.dumps({"error": type(error).__name__}), flush=True)


def children() -> None:
    """A forked child lives on while its parent sends, and after it has left."""
    slipstream.init()
    rank, n = slipstream.rank(), slipstream.size()
    met()
    mine = data(rank, 4 << 20)
    child = os.fork()
    if child == 0:
        mine[:] = 0
        time.sleep(0.5)
        os._exit(0)
    for _ in range(20):
        got = slipstream.all_gather(mine)
        same("all_gather", got, np.concatenate([data(r, mine.size) for r in range(n)]))
    os.waitpid(child, 0)
    statistics()
    slipstream.shutdown()


globals()[sys.argv[1]]()
