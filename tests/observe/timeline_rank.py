"""One rank of the timeline's tests: timeline_rank.py CASE [FILE], where CASE is a function below."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import slipstream
from slipstream.comm.negotiation.agreement import Request
from slipstream.comm.negotiation.negotiator import negotiator_of

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from lanes_rank import reset_connection

CALLS = 20


def operations() -> None:
    """Every kind of call, some of them at the same time."""
    slipstream.init()
    rank, n = slipstream.rank(), slipstream.size()
    for i in range(CALLS):
        slipstream.all_reduce(np.ones(1 << i % 18, dtype=np.float32), name=f"gradient {i}")
    works = [
        slipstream.all_reduce(np.ones(10_000), name=f"überlappt {i}", async_op=True) for i in range(CALLS)
    ]
    for work in works:
        work.wait()
    slipstream.broadcast(np.ones(3, dtype=np.int64))
    message = np.arange(5, dtype=np.int16)
    if rank == 0:
        slipstream.send(message, n - 1)
    if rank == n - 1:
        slipstream.recv(message, 0)
    slipstream.shutdown()


def casts() -> None:
    """One sum travels as int8, another as it is."""
    slipstream.init()
    for wire in ("int8", "exact"):
        slipstream.all_reduce(np.ones(1 << 16, dtype=np.float32), name=wire, wire=wire)
    slipstream.shutdown()


def clocks() -> None:
    """The clock of rank 1 is a hundred seconds ahead."""
    if os.environ["SLIPSTREAM_RANK"] == "1":
        clock = time.time_ns
        time.time_ns = lambda: clock() + 100 * 10**9
    operations()


def resets() -> None:
    """Rank 0, which dialled, has a bulk lane reset, and then the control lane; prints their addresses."""
    slipstream.init()
    data = np.ones(1 << 20, dtype=np.float32)
    wanted = 1 + int(os.environ["SLIPSTREAM_LANES"])

    def lanes_up() -> int:
        return sum(lane.up for link in slipstream.link_statistics() for lane in link.lanes)

    while slipstream.all_reduce(np.array([lanes_up()]), op=slipstream.MIN)[0] < wanted:
        slipstream.all_reduce(data)
    for number in (1, 0):
        lost = slipstream.link_statistics()[0].lost
        slipstream.barrier()
        if slipstream.rank() == 0:
            local = slipstream.link_statistics()[0].lanes[number].local
            assert reset_connection(local)
            print(local)
        mended = np.zeros(1)
        while not mended[0]:
            slipstream.all_reduce(data)
            link = slipstream.link_statistics()[0]
            up = link.lost > lost and all(lane.up for lane in link.lanes)
            mended = slipstream.all_reduce(np.array([up]), op=slipstream.BAND)
    slipstream.shutdown()


def killed() -> None:
    """Rank 0 is killed as soon as its file tells of an operation."""
    slipstream.init()
    slipstream.all_reduce(np.ones(10), name="last words")
    file = Path(os.environ["SLIPSTREAM_TIMELINE"])
    if slipstream.rank() == 0:
        while "last words" not in file.read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


def soon() -> None:
    """A timeline that does not look for a year shows what ends the quiet of each rank all the same."""
    from slipstream.observe import timeline

    timeline._PERIOD = 365 * 86400.0
    file = Path(os.environ["SLIPSTREAM_TIMELINE"])
    slipstream.init()
    negotiate("loss")
    if slipstream.rank() == 0:
        while file.read_text().count("NEGOTIATE_ALLREDUCE") < slipstream.size():
            time.sleep(0.01)  # a poll of what another thread writes
    slipstream.barrier()
    slipstream.shutdown()


def dynamic() -> None:
    """Two timelines of one job, by calls."""
    file = sys.argv[2]
    slipstream.init()
    for name in ("before", "within", "between", "again"):
        if name in ("within", "again"):
            with pytest.raises(OSError, match=r"its timeline none/\d: there is no folder none"):
                slipstream.start_timeline("none/{rank}")
            slipstream.start_timeline(file)
            with pytest.raises(slipstream.SlipstreamError, match="stop_timeline"):
                slipstream.start_timeline(file)
        slipstream.all_reduce(np.ones(10), name=name)
        if name == "within":
            slipstream.stop_timeline()
            slipstream.stop_timeline()
    slipstream.shutdown()


def threads() -> None:
    """Two threads begin a timeline at the same time, again and again: one has it, and all end."""
    folder, rounds = Path(sys.argv[2]), 20
    slipstream.init()
    for i in range(rounds):
        together, refused = threading.Barrier(2), []

        def begin(j: int, together: threading.Barrier, refused: list[int], i: int = i) -> None:
            together.wait()
            try:
                slipstream.start_timeline(folder / f"{i}-{j}")
            except slipstream.SlipstreamError:
                refused.append(j)

        beginners = [threading.Thread(target=begin, args=(j, together, refused)) for j in (0, 1)]
        for beginner in beginners:
            beginner.start()
        for beginner in beginners:
            beginner.join()
        assert len(refused) == 1, refused
        slipstream.all_reduce(np.ones(10), name=f"round {i}")
        slipstream.stop_timeline()
    slipstream.shutdown()
    assert not [thread for thread in threading.enumerate() if thread.name == "slipstream-timeline"]


def off() -> None:
    """Without a timeline: no thread, no file, and nothing is kept."""
    slipstream.init()
    slipstream.all_reduce(np.ones(10), name="unseen")
    from slipstream.comm.membership.job import current

    assert current().session.take_trace() == ([], 0)
    assert "slipstream.observe.timeline" not in sys.modules
    assert not any("timeline" in thread.name for thread in threading.enumerate())
    slipstream.shutdown()


def program() -> None:
    """The program records something, and negotiates."""
    slipstream.init()
    with slipstream.timeline_span("load data", batch=7, path=Path("a")):
        slipstream.timeline_mark("epoch", number=1)
    negotiate("loss")
    slipstream.shutdown()


def negotiate(name: str) -> None:
    """A sum that begins when all ranks have called it."""
    request = Request("allreduce", name, "float64 of 3")
    negotiated = negotiator_of(slipstream.world()).submit(
        request, lambda group: slipstream.all_reduce(np.ones(3), group=group, async_op=True, name=name)
    )
    negotiated.wait()


def failed() -> None:
    """Rank 1 calls something else: both see a Mismatch."""
    slipstream.init()
    with pytest.raises(slipstream.Mismatch):
        slipstream.all_reduce(np.ones(10 + slipstream.rank()), name="disputed")
    slipstream.shutdown()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
