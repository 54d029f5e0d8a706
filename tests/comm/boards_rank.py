"""A rank whose small operations go over a board: boards_rank.py CASE [FOLDER]."""

from __future__ import annotations

import gc
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from interruption import break_off

import slipstream
from slipstream.base.errors import SlipstreamError
from slipstream.comm.membership import job

SMALL = 3  # elements
slipstream.link_statistics  # noqa: B018 - its module is imported now, while there are files to open


def sent() -> int:
    """Bytes that this rank has sent in messages."""
    return sum(link.sent for link in slipstream.link_statistics())


def without_messages(group: slipstream.Group | None = None, call: Callable[[], object] | None = None) -> bool:
    """Whether some operations of the group, barriers if no others, went without messages on all its ranks."""
    before = sent()
    for _ in range(10):
        if call is None:
            slipstream.barrier(group=group)
        else:
            call()
    grew = np.array([sent() != before])
    return not slipstream.all_reduce(grew, "max", group=group)[0]


def has_board() -> bool:
    """Whether this rank has mapped memory that ranks share, as after the first operations on a board."""
    return "memfd:slipstream-region" in Path("/proc/self/maps").read_text()


def settle(group: slipstream.Group | None = None, call: Callable[[], object] | None = None) -> None:
    """Calls operations until they go over the board."""
    for _ in range(5000):  # a rank that goes by messages tries again after 4096 operations at the latest
        if without_messages(group, call):
            return
    raise AssertionError("no board")


def check(group: slipstream.Group | None = None, add: float = 0.0) -> None:
    """All kinds of operations give what they should."""
    size = slipstream.size() if group is None else group.size
    rank = slipstream.rank() if group is None else group.rank
    ranks = np.arange(size)
    x = np.full(SMALL, rank + add)
    np.testing.assert_array_equal(slipstream.all_reduce(x, group=group), np.full(SMALL, (ranks + add).sum()))
    np.testing.assert_array_equal(
        slipstream.all_reduce(x, "max", group=group, out=x), np.full(SMALL, size - 1 + add)
    )
    np.testing.assert_array_equal(
        slipstream.all_reduce(np.full(SMALL, rank), "avg", group=group, postscale=3.0),
        np.full(SMALL, int(ranks.sum() / size) * 3),
    )
    got = slipstream.reduce_scatter(np.arange(2 * size) + rank, group=group)
    np.testing.assert_array_equal(got, (np.arange(2 * size)[2 * rank : 2 * rank + 2] * size) + ranks.sum())
    np.testing.assert_array_equal(slipstream.all_gather(np.array([rank + add]), group=group), ranks + add)
    slipstream.barrier(group=group)
    check_ragged(rank, size, int(add), group)


def check_ragged(rank: int, size: int, add: int, group: slipstream.Group | None) -> None:
    """Operations whose blocks travel with their sizes: a rank brings ``rows[rank]`` rows, also none, or many."""
    rows = [(r + add) % 4 * (1 + add % 3 * 40) for r in range(size)]
    block = np.full((rows[rank], 3), rank + add, dtype=np.int32)
    everyone = np.concatenate([np.full((n, 3), r + add, dtype=np.int32) for r, n in enumerate(rows)])
    np.testing.assert_array_equal(slipstream.all_gather(block, group=group), everyone)
    root = add % size
    got = slipstream.gather(block, root, group=group)
    if rank == root:
        np.testing.assert_array_equal(got, everyone)
    own = slipstream.scatter(everyone, root, out=np.empty_like(block), group=group)
    np.testing.assert_array_equal(own, block)
    counts = [(rank + other + add) % 3 for other in range(size)]  # rows for each of the others
    sent = np.repeat(np.arange(size) + 100 * rank, counts)
    received = slipstream.all_to_all(sent, splits=counts, group=group)
    whole = [[rank + 100 * other] * ((rank + other + add) % 3) for other in range(size)]
    np.testing.assert_array_equal(received, np.concatenate(whole))


def values(_: Path) -> None:
    for i in range(200):
        check(add=i)
    settle()
    assert has_board()
    check()


def ragged(_: Path) -> None:
    rank, size = slipstream.rank(), slipstream.size()
    block, everyone = np.full(rank + 1, rank), np.zeros(size * (size + 1) // 2)
    settle(call=lambda: slipstream.all_gather(block))
    settle(call=lambda: slipstream.gather(block, 1))
    settle(call=lambda: slipstream.scatter(everyone, 1, out=np.empty(rank + 1)))
    settle(call=lambda: slipstream.all_to_all(np.zeros(size * 5)))


def poor(folder: Path) -> None:
    """A rank that may open no more files, or has no more address space, stays off the board; nothing fails."""
    slipstream.all_to_all(np.zeros(slipstream.size() * 50_000))  # links to all
    np.testing.assert_array_equal(
        slipstream.all_reduce(np.ones(SMALL), async_op=True).wait(), slipstream.size()
    )
    if slipstream.rank() == 1 and folder.name == "files":
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    elif slipstream.rank() == 1:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(
            resource.RLIMIT_AS, (pages * resource.getpagesize() + 500_000, resource.RLIM_INFINITY)
        )
    for i in range(300):
        np.testing.assert_array_equal(
            slipstream.all_reduce(np.full(SMALL, i)), np.full(SMALL, i * slipstream.size())
        )
        slipstream.barrier()
    assert not without_messages()


def dear(folder: Path) -> None:
    """The first rank has few descriptors left when the board wants links to the others; later it has, and uses them."""
    for _i in range(3):
        slipstream.barrier()
    held: list[int] = []
    if slipstream.rank() == 0:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            for _i in range(int(folder.name)):  # one is for the memory of the board
                os.close(held.pop())
    slipstream.barrier()  # the fourth call: a board is made
    for descriptor in held:
        os.close(descriptor)
    slipstream.barrier()
    if slipstream.rank() == 0:
        slipstream.send(np.ones(100_000), 3)
    elif slipstream.rank() == 3:
        got = np.zeros(100_000)
        slipstream.recv(got, 0)
        assert got.all()
    slipstream.barrier()


def late(_: Path) -> None:
    settle()
    if slipstream.rank() == 1:
        time.sleep(1.5)  # it computes: longer than the others look before they sleep
    used = time.process_time()
    slipstream.all_reduce(np.ones(SMALL))
    used = time.process_time() - used
    assert used < 0.5, f"waited with {used} s of a processor"
    for _ in range(20):
        check()


def lost(folder: Path) -> None:
    settle()
    if slipstream.rank() == 1:
        (folder / "pid").write_text(str(os.getpid()))
        time.sleep(1000)  # until it is killed, or stopped
    try:
        slipstream.all_reduce(np.ones(SMALL))
    except SlipstreamError as error:
        print(f"{type(error).__name__}: {error}")


def times_out(_: Path) -> None:
    settle()
    session = job.current().session
    try:
        if slipstream.rank() == 0:
            slipstream.all_reduce(np.ones(SMALL), name="lonely")
        while True:
            session.check()
            time.sleep(0.01)  # a poll of the session, which ends
    except SlipstreamError as error:
        print(f"{type(error).__name__}: {error}")


def interrupted(folder: Path) -> None:
    settle()
    for i in range(4):
        done = folder / f"interrupted{i}"
        data = np.full(SMALL, 1.0)
        if slipstream.rank() == 0:
            break_off(partial(slipstream.all_reduce, data, out=data), job.current().session)
            done.touch()
            if i % 2:  # on the same memory: after the interrupted one
                slipstream.all_reduce(data, out=data)
                np.testing.assert_array_equal(data, np.full(SMALL, 2.0 * slipstream.size()))
        else:
            while not done.exists():
                time.sleep(0.01)
            work = slipstream.all_reduce(data, out=data, async_op=i >= 2)
            if i >= 2:
                work.wait()
            np.testing.assert_array_equal(data, np.full(SMALL, float(slipstream.size())))
            if i % 2:
                slipstream.all_reduce(np.full(SMALL, float(slipstream.size())))
        del data
        check(add=i)
    settle()


def differs(folder: Path) -> None:
    settle()
    one = slipstream.rank() == 1
    calls: dict[str, Callable[[], object]] = {
        "shape": lambda: slipstream.all_reduce(np.ones((2, 3) if one else (3, 2))),
        "dtype": lambda: slipstream.all_reduce(np.ones(SMALL, np.float32 if one else np.float64)),
        "op": lambda: slipstream.all_reduce(np.ones(SMALL), "max" if one else "sum"),
        "kind": lambda: slipstream.barrier() if one else slipstream.all_reduce(np.ones(SMALL)),
        "name": lambda: slipstream.all_reduce(np.ones(SMALL), name="one" if one else "other"),
        "root": lambda: slipstream.gather(np.ones(SMALL), int(one)),
        "ragged": lambda: (slipstream.gather if one else slipstream.all_to_all)(np.ones(2 * SMALL)),
        "late": lambda: (time.sleep(0.5 if one else 0), slipstream.all_reduce(np.ones(4 if one else SMALL))),
    }
    try:
        calls[folder.name]()
    except SlipstreamError as error:
        print(f"{type(error).__name__}: {error}")


def mixed(_: Path) -> None:
    settle()
    for i in range(300):
        big = np.full(100_000 if i % 50 == 0 else SMALL, float(i))
        asynchronous = (i + slipstream.rank()) % 3 == 0
        work = slipstream.all_reduce(big, async_op=asynchronous)
        result = work.wait() if asynchronous else work
        np.testing.assert_array_equal(result, big * slipstream.size())
    works = [slipstream.all_reduce(np.full(SMALL, float(i)), async_op=True) for i in range(50)]
    check()
    for i, work in enumerate(works):
        np.testing.assert_array_equal(work.wait(), np.full(SMALL, float(i * slipstream.size())))
    settle()


def groups(_: Path) -> None:
    half = [r for r in range(slipstream.size()) if r % 2 == slipstream.rank() % 2]
    others = slipstream.Group(half)
    backwards = slipstream.Group(list(reversed(range(slipstream.size()))))
    for group in (others, backwards):
        settle(group)
        check(group)
    settle()

    def many(group: slipstream.Group) -> None:
        for i in range(100):
            check(group, i)

    threads = [threading.Thread(target=many, args=(group,)) for group in (others, backwards)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settle()


def forked(_: Path) -> None:
    settle()
    group = slipstream.world()
    child = os.fork()
    if child == 0:
        try:
            slipstream.all_reduce(np.ones(SMALL), group=group)
        except SlipstreamError as error:
            os._exit(0 if "was forked off" in str(error) else 1)
        os._exit(2)
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
    check()
    settle()


def off(_: Path) -> None:
    for i in range(100):
        check(add=i)
    assert not without_messages()


def apart(_: Path) -> None:
    for i in range(100):
        check(add=i)
    assert not has_board()


def dropped(_: Path) -> None:
    counts = []
    slipstream.all_to_all(np.zeros(slipstream.size() * 50_000))  # links to all, which have descriptors, too
    for i in range(1, 121):
        group = slipstream.Group()
        for k in range(6):
            total = slipstream.all_reduce(np.full(SMALL, float(slipstream.rank() + k)), group=group)
            assert (total == 3 + 3 * k).all()
        if i in (20, 120):
            settle(group)
            counts.append(len(os.listdir("/proc/self/fd")))
        del group
        gc.collect()
    assert counts[1] <= counts[0] + 2, counts


def held(_: Path) -> None:
    """Many groups, whose boards share few files."""
    slipstream.all_to_all(np.zeros(slipstream.size() * 50_000))  # links to all
    before = len(os.listdir("/proc/self/fd"))
    groups = [slipstream.Group() for _ in range(200)]
    for group in groups:
        for k in range(6):
            total = slipstream.all_reduce(np.full(SMALL, float(slipstream.rank() + k)), group=group)
            assert (total == 3 + 3 * k).all()
    settle(groups[-1])
    assert len(os.listdir("/proc/self/fd")) <= before + 6


def leaves(_: Path) -> None:
    settle()
    if slipstream.rank() == 1:
        time.sleep(0.5)  # until the others sleep
    slipstream.barrier()  # and ends at once: who sleeps is told before


if __name__ == "__main__":
    slipstream.init()
    globals()[sys.argv[1]](Path(sys.argv[2]))
    print("end")
