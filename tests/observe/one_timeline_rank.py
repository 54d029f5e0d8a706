"""One rank of a job whose timeline is one file: one_timeline_rank.py CASE [FILE], where CASE is a function below."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import slipstream
from slipstream.comm.measuring import network
from slipstream.observe import timeline

BARRIERS = 40
RANK = int(os.environ["SLIPSTREAM_RANK"])


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


def work() -> None:
    """Operations, and bars of the program; the clock on the wall differs by 100 s from rank to rank."""
    clock = time.time_ns
    time.time_ns = lambda: clock() + RANK * 100 * 10**9
    slipstream.init()
    for i in range(BARRIERS):
        slipstream.all_reduce(np.ones(1000), name=f"gradient {i}")
        slipstream.barrier()
    with slipstream.timeline_span("end"):
        slipstream.shutdown()


def wrong() -> None:
    """What the start has measured of the clocks is wrong: by half a second for each rank."""
    measure = network.clock_offset
    network.clock_offset = lambda runs, rank: measure(runs, rank) + rank * 500_000_000
    work()


def killed() -> None:
    """The rank of the last argument is killed as soon as the file tells of its operation."""

    def told(text: str) -> bool:
        return any(f'"pid":{RANK},' in line for line in text.splitlines() if "last words" in line)

    file, victim = Path(os.environ["SLIPSTREAM_TIMELINE"]), int(sys.argv[2])
    slipstream.init()
    slipstream.all_reduce(np.ones(10), name="last words")
    if victim == RANK:
        until(lambda: told(file.read_text()))
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(slipstream.PeerLost):
        slipstream.all_reduce(np.ones(10), name="in vain")
    slipstream.shutdown()


def goes_on() -> None:
    """A training whose timeline cannot be written."""
    slipstream.init()
    for _ in range(3):
        slipstream.all_reduce(np.ones(10))
    until(lambda: not any(one.is_alive() for one in timelines_that_write()))
    print(slipstream.all_reduce(np.ones(1))[0])
    slipstream.shutdown()


def timelines_that_write() -> list[object]:
    return [one._thread for one in timeline._running.values()] if RANK == 0 else []


def alone() -> None:
    """Only rank 0 records."""
    slipstream.init()
    if RANK == 0:
        slipstream.start_timeline(sys.argv[2])
    slipstream.barrier()
    slipstream.stop_timeline()
    slipstream.shutdown()


def again() -> None:
    """Two timelines of all ranks, one right after the other; rank 1 records longer than rank 0 does."""
    slipstream.init()
    for name in ("one", "two"):
        slipstream.start_timeline(sys.argv[2])
        slipstream.all_reduce(np.ones(10), name=name)
        slipstream.stop_timeline()
        slipstream.barrier()
    slipstream.shutdown()


def forks() -> None:
    """A child has no part of the timeline, nor of its connections."""
    slipstream.init()
    (running,) = timeline._running.values()
    sink = running._sink
    if RANK:
        until(lambda: sink._store is not None)
    slipstream.all_reduce(np.ones(10), name="before")
    pid = os.fork()
    if pid == 0:
        closed = [sink._store._sock.sock.fileno() == -1] if RANK else []
        os._exit(0 if all(closed) and not timeline._running and not timeline._collectors else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    slipstream.all_reduce(np.ones(10), name="after")
    slipstream.shutdown()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
