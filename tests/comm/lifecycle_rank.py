"""One rank of the life-cycle tests: lifecycle_rank.py CASE, where CASE is a function below."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import slipstream
from slipstream import AVG, BAND, SUM
from slipstream.comm.membership import job


def resources() -> dict[str, int]:
    """What a leak would make grow: open files, threads, mappings, resident memory in MiB."""
    status = Path("/proc/self/status").read_text().splitlines()
    resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "resident": resident >> 10,
    }


def regions_mapped(nbytes: int) -> int:
    """How many mappings of a shared region of this size the process has, its own or another rank's."""
    found = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "slipstream-region" in line:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            found += end - start == nbytes
    return found


def region_files(nbytes: int) -> int:
    """How many regions of this size the process holds open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            found += "slipstream-region" in os.readlink(path) and os.stat(path).st_size == nbytes
    return found


def total(n: int) -> int:
    return n * (n + 1) // 2


def must_raise(kind: type[Exception], call: Callable[..., Any], *args: Any, what: str = "it") -> str:
    """Calls, and returns the text of the error."""
    try:
        call(*args)
    except kind as error:
        return str(error)
    raise AssertionError(f"{what} raises no {kind.__name__}")


def some_operations() -> None:
    """Small and large, on the world and on a group, waited for and forgotten, in shared memory too."""
    n = slipstream.size()
    mine = np.full(300_000, slipstream.rank() + 1.0)
    assert (slipstream.all_reduce(mine) == total(n)).all()
    shared = slipstream.empty(100_000)
    shared[...] = 1
    slipstream.all_reduce(shared, out=shared)
    assert (shared == n).all()
    work = slipstream.all_reduce(mine, group=slipstream.Group(range(n)), async_op=True)
    assert (slipstream.broadcast(mine, n - 1) == n).all()
    assert (work.wait() == total(n)).all()
    slipstream.barrier()


def again() -> None:
    """init and shutdown 200 times: the last 180 leave nothing behind, also where no garbage is collected."""
    gc.disable()
    before: dict[str, int] = {}
    for turn in range(200):
        slipstream.init()
        assert slipstream.is_initialized()
        some_operations()
        slipstream.shutdown()
        assert not slipstream.is_initialized()
        if turn == 19:
            before = resources()
    check_nothing_left(before)


def check_nothing_left(before: dict[str, int]) -> None:
    """This process has no more than it had ``before``."""
    after, deadline = resources(), time.monotonic() + 20
    while after["threads"] > before["threads"] and time.monotonic() < deadline:
        after = resources()  # a thread that was joined is listed for a moment
    assert after["files"] == before["files"], (before, after)
    assert after["threads"] <= before["threads"], (before, after)
    assert after["mappings"] <= before["mappings"] + 8, (before, after)  # the C library's arenas come and go
    assert after["resident"] <= before["resident"] + 32, (before, after)


def ring() -> None:
    """A ring opens a link to either neighbour, and no other."""
    slipstream.init()
    world = slipstream.world()
    world.use("all_reduce", "ring", 1 << 18)
    result = slipstream.all_reduce(np.full(100_000, slipstream.rank() + 1.0))
    assert (result == total(world.size)).all()
    tcp, shm = job.current().session.links()
    neighbours = min(2, world.size - 1)
    assert (tcp, shm) == ((0, neighbours) if os.environ["SLIPSTREAM_TRANSPORT"] == "shm" else (neighbours, 0))
    slipstream.all_reduce(np.ones(1))
    slipstream.shutdown()


def idle() -> None:
    """A session with nothing to do takes no processor time, all its threads together."""
    slipstream.init()
    some_operations()
    some_operations()
    time.sleep(0.3)  # the engine may look around for a while after the last operation
    spent = []
    for _ in range(3):  # the least of three: a neighbour on the machine may charge us an interrupt
        before = os.times()
        time.sleep(1)  # what is measured: nothing happens in this second
        after = os.times()
        spent.append(after.user + after.system - before.user - before.system)
    assert min(spent) <= 0.02, f"an idle second takes {spent} s of processor time"
    some_operations()
    slipstream.shutdown()


def unread() -> None:
    """A shutdown sleeps while it waits for a peer that does not read: rank 1 is stopped."""
    slipstream.init()
    data = np.ones(1 << 23)  # more than sockets hold
    process = int(slipstream.broadcast(np.array([os.getpid()]), 1)[0])
    if slipstream.rank() == 1:
        os.kill(process, signal.SIGSTOP)
        must_raise(slipstream.SlipstreamError, slipstream.all_reduce, data)
        return
    state = Path(f"/proc/{process}/stat")
    while state.read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)  # a poll of what another process does
    work = slipstream.all_reduce(data, async_op=True)
    must_raise(slipstream.Timeout, work.wait, 0.3)
    before = os.times()
    slipstream.shutdown()
    after = os.times()
    os.kill(process, signal.SIGCONT)
    spent = after.user + after.system - before.user - before.system
    assert spent <= 0.2, f"the shutdown takes {spent} s of processor time"


def dropped() -> None:
    """Works nobody waits for run to their end on memory nobody holds."""
    slipstream.init()
    n = slipstream.size()
    kept = []
    for turn in range(200):
        data = np.full(20_000, slipstream.rank() + 1.0)
        work = slipstream.all_reduce(data, out=data, async_op=True)
        if slipstream.rank() == 0:  # this rank looks at what the others' memory held
            kept.append((work, data))
        if turn % 2:
            slipstream.all_reduce(np.ones(10), async_op=True)
        del work, data
        noise = np.full(20_000, np.nan)  # would take the place of memory freed too early
        del noise
    for work, data in kept:
        work.wait()
        assert (data == total(n)).all()
    assert (slipstream.all_reduce(np.full(20_000, slipstream.rank() + 1.0)) == total(n)).all()
    for _ in range(10):
        slipstream.all_reduce(np.ones(1000), async_op=True)
    slipstream.shutdown()  # with works under way
    slipstream.init()
    some_operations()
    slipstream.shutdown()


def too_early() -> None:
    """A wait that is too short raises Timeout, and the operation goes on."""
    slipstream.init()
    rank = slipstream.rank()
    ready = np.zeros(1)
    if rank == 0:
        work = slipstream.all_reduce(np.ones(50_000), async_op=True)
        for timeout in (0.05, 0.0):
            must_raise(TimeoutError, work.wait, timeout)
            must_raise(slipstream.Timeout, work.wait, timeout)
        assert not work.done()
        slipstream.send(ready, 1)
    else:
        slipstream.recv(ready, 0)  # rank 0 has given up waiting
        work = slipstream.all_reduce(np.ones(50_000), async_op=True)
    assert (work.wait(60) == 2).all()
    assert work.done()
    assert (work.wait() == 2).all()  # as often as one likes
    some_operations()
    slipstream.shutdown()


def asked_alone() -> None:
    """Rank 0 gives up a wait at once, and then only asks whether the operation is done: it goes on by itself."""
    slipstream.init()
    x = np.ones(1 << 18, np.float32)
    slipstream.all_reduce(x)
    for _ in range(50):
        slipstream.barrier()
        time.sleep(0.02)  # nobody drives now but the engine's thread, which is idle
        if slipstream.rank() == 0:
            work = slipstream.all_reduce(x, async_op=True)
            with contextlib.suppress(slipstream.Timeout):
                work.wait(0)
            while not work.done():
                time.sleep(0.001)
            work.wait()  # raises if rank 1 has missed rank 0
        else:
            time.sleep(0.02)  # mostly, rank 0 has given up by then
            slipstream.all_reduce(x)
    slipstream.shutdown()


def wrong_arguments() -> None:
    """What is wrong on this rank alone is an error here, and nothing happens elsewhere."""
    slipstream.init()
    n = slipstream.size()
    ones = np.ones(6)
    locked = np.ones(6)
    locked.flags.writeable = False
    cases: list[tuple[type[Exception], Callable[[], Any]]] = [
        (ValueError, lambda: slipstream.all_reduce(ones, out=np.ones(5))),
        (ValueError, lambda: slipstream.all_reduce(ones, out=np.ones(6, dtype=np.float32))),
        (ValueError, lambda: slipstream.all_reduce(ones, out=np.ones(12)[::2])),
        (ValueError, lambda: slipstream.all_reduce(ones, out=locked)),
        (ValueError, lambda: slipstream.all_reduce(ones, BAND)),
        (ValueError, lambda: slipstream.all_reduce(ones.astype(complex), slipstream.MAX)),
        (TypeError, lambda: slipstream.all_reduce(object())),
        (TypeError, lambda: slipstream.all_reduce(np.array(["text"]))),
        (TypeError, lambda: slipstream.all_reduce(ones.astype(">f8"))),
        (ValueError, lambda: slipstream.broadcast(ones, n)),
        (ValueError, lambda: slipstream.broadcast(ones, -1)),
        (ValueError, lambda: slipstream.reduce(ones, n)),
        (ValueError, lambda: slipstream.reduce_scatter(ones, counts=[6] * n)),
        (ValueError, lambda: slipstream.reduce_scatter(ones, counts=[6])),
        (ValueError, lambda: slipstream.all_to_all(ones, splits=[6] * n)),
        (ValueError, lambda: slipstream.all_to_all(np.ones(n + 1))),
        (ValueError, lambda: slipstream.all_to_all(np.ones(2), splits=[4, -2])),
        (ValueError, lambda: slipstream.send(ones, slipstream.rank())),
        (ValueError, lambda: slipstream.recv(ones, n)),
        (ValueError, lambda: slipstream.recv(locked, (slipstream.rank() + 1) % n)),
        (ValueError, lambda: slipstream.Group([slipstream.rank(), slipstream.rank()])),
        (ValueError, lambda: slipstream.Group([slipstream.rank(), n])),
        (ValueError, lambda: slipstream.Group([slipstream.rank(), -1])),
        (ValueError, lambda: slipstream.Group([(slipstream.rank() + 1) % n])),
    ]
    for turn in range(2):
        for i, (kind, call) in enumerate(cases):
            if (i + turn) % n == slipstream.rank() or turn == 0:  # also when only one rank makes the mistake
                must_raise(kind, call, what=f"case {i}")
        some_operations()
    assert (slipstream.all_reduce(ones, AVG) == 1).all()
    slipstream.shutdown()
    for call in (slipstream.rank, slipstream.barrier, lambda: slipstream.all_reduce(ones)):
        assert "init" in must_raise(slipstream.SlipstreamError, call)
    slipstream.shutdown()  # once more is no error


def freed() -> None:
    """Memory from empty() that is dropped is unmapped here and on all ranks that mapped it."""
    slipstream.init()
    n = slipstream.size()
    count = 1_234_944  # a multiple of 1024 elements: of whole pages
    arrays = [slipstream.empty(count) for _ in range(3)]
    slipstream.world().use("all_reduce", "direct", 1 << 16)
    for array in arrays:
        array[...] = 1
        slipstream.all_reduce(array, SUM, out=array)
        assert (array == n).all()
    nbytes = count * 4
    assert region_files(nbytes) >= 3
    mapped = int(slipstream.all_reduce(np.array([regions_mapped(nbytes)]))[0])
    assert mapped > 3 * n, f"{mapped} mappings: no rank has read another's memory"  # the test would be void
    view = arrays[0][10:20]
    del arrays, array
    assert regions_mapped(nbytes) >= 1  # a view keeps its array
    view[...] = 7
    del view
    for _ in range(1000):
        if slipstream.all_reduce(np.array([regions_mapped(nbytes)]))[0] == 0:
            break
    else:
        raise AssertionError(f"rank {slipstream.rank()} still maps {regions_mapped(nbytes)} freed arrays")
    assert region_files(nbytes) == 0
    kept = slipstream.empty(1000)
    slipstream.shutdown()
    kept[...] = 3  # outlives the session
    assert kept.sum() == 3000


def listening() -> int:
    """How many sockets of this process listen."""
    files = Path("/proc/self/fd").iterdir()
    links = [os.readlink(file) for file in files if os.path.lexists(file)]
    mine = {link[8:-1] for link in links if link.startswith("socket:[")}
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6", "unix")]
    tcp = [line.split()[9] for table in tables[:2] for line in table if line.split()[3] == "0A"]
    unix = [line.split()[6] for line in tables[2] if int(line.split()[3], 16) & 0x10000]
    return len(mine & {*tcp, *unix})


def held() -> None:
    """Who keeps a group, and collects no garbage, listens no more once it has left."""
    gc.disable()
    before = listening()
    slipstream.init()
    group = slipstream.world()
    some_operations()
    assert listening() > before
    slipstream.shutdown()
    assert listening() == before, (listening(), before)
    assert group.size == int(os.environ["SLIPSTREAM_SIZE"])


def main() -> None:
    faulthandler.dump_traceback_later(100, exit=True)
    globals()[sys.argv[1]]()
    print("done")


if __name__ == "__main__":
    main()
