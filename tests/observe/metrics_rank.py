"""A rank of `test_metrics`: metrics_rank.py CASE [ARGS...]."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest

import slipstream
from slipstream.base.errors import SlipstreamError
from slipstream.comm.membership import job as jobs
from slipstream.observe.metrics import recorders
from slipstream.observe.metrics_exchange import ask, ask_all, key_of, name_of

CALLS = 20


def cells() -> dict[tuple[str, int], dict[str, Any]]:
    counters = jobs.current().session.counters()
    return {(cell["collective"], cell["largest"]): cell for cell in counters["operations"]}


def counts() -> None:
    """Every operation is counted once, by its size; waits are those of callers alone."""
    slipstream.barrier()
    before, session = cells(), jobs.current().session
    waited = session.times()[0]
    large, small = np.ones(1 << 18, np.float32), np.ones(4, np.float32)
    for _ in range(CALLS):
        work = slipstream.all_reduce(large, async_op=True)
        slipstream.all_gather(small)
        slipstream.all_reduce(small)
        work.wait()
    found, peer = cells(), 1 - slipstream.rank()

    def more(collective: str, largest: int, what: str) -> Any:
        earlier = before.get((collective, largest), {}).get(what, 0)
        return found[collective, largest][what] - earlier

    assert more("all_reduce", 1 << 20, "count") == CALLS
    assert more("all_reduce", 1 << 20, "bytes") == CALLS * large.nbytes
    assert more("all_reduce", 1 << 20, "bus_bytes") == CALLS * large.nbytes  # 2 (n - 1) / n of them
    assert more("all_reduce", 4 << 10, "count") == CALLS
    assert more("all_gather", 4 << 10, "count") == CALLS
    assert more("all_gather", 4 << 10, "bytes") >= CALLS * 2 * small.nbytes
    assert 0 < more("all_reduce", 1 << 20, "seconds") < 100
    assert session.times()[0] > waited
    if slipstream.rank() == 0:
        time.sleep(1)  # this rank comes late: that is what the other one shall see
    late, waited = session.counters()["late"][peer], session.times()[0]
    slipstream.all_reduce(large)
    if slipstream.rank() == 1:
        assert session.counters()["late"][peer] - late > 0.1
        assert session.times()[0] - waited > 0.1e9
    slipstream.barrier()


def hidden() -> None:
    """What runs beside the program's own work is hidden, and only the rest is exposed."""
    data = np.ones(1 << 22, np.float32)
    for _ in range(6):
        work = slipstream.all_reduce(data, async_op=True)
        while not work.done():  # as long as it takes, so that nothing is left to wait for
            time.sleep(0.001)
        work.wait()
        slipstream.mark_step()
    (recorder,) = recorders()
    steps = recorder.steps()
    assert steps["count"] == 5  # the first began before the training did
    assert steps["all"]["hidden"] > 0, steps
    assert steps["all"]["exposed"] < steps["all"]["hidden"], steps
    assert steps["total"]["seconds"] >= steps["total"]["exposed"] + steps["total"]["hidden"] - 1e-6
    slipstream.barrier()


def compute(slow: str) -> None:
    """Steps; the rank ``slow`` computes longer."""
    data = np.ones(1 << 18, np.float32)
    for _ in range(25):
        time.sleep(0.08 if slipstream.rank() == int(slow) else 0.005)
        slipstream.all_reduce(data)
        slipstream.mark_step()


def late(slow: str) -> None:
    """Small operations without steps; the rank ``slow`` comes late to them."""
    data = np.ones(2048, np.float32)
    for _ in range(15):
        time.sleep(0.12 if slipstream.rank() == int(slow) else 0.0)
        slipstream.all_reduce(data)


def port(first: str) -> None:
    """This rank's page has its numbers."""
    slipstream.all_reduce(np.ones(1 << 18, np.float32))
    base = f"http://127.0.0.1:{int(first) + slipstream.local_rank()}"
    page = urllib.request.urlopen(f"{base}/metrics").read().decode()
    labels = f'job="job",rank="{slipstream.rank()}",collective="all_reduce",size="1048576"'
    assert f"slipstream_operations_total{{{labels}}} 1\n" in page, page
    assert urllib.request.urlopen(f"{base}/healthz").status == 200
    slipstream.barrier()
    with contextlib.suppress(SlipstreamError):
        jobs.current().session.abort("on purpose") if slipstream.rank() == 0 else slipstream.barrier()
    with pytest.raises(urllib.error.HTTPError, match="503"):  # a failed job is not well
        urllib.request.urlopen(f"{base}/healthz")
    slipstream.shutdown()
    with pytest.raises(urllib.error.URLError):  # the port goes with the job
        urllib.request.urlopen(f"{base}/healthz")


def works() -> None:
    """Whatever becomes of the metrics, operations go on."""
    assert (slipstream.all_reduce(np.ones(8)) == slipstream.size()).all()


def removes(folder: str) -> None:
    """The folder of the summary is gone when it is to be written."""
    slipstream.barrier()
    if slipstream.rank() == 0:
        os.rmdir(folder)


def top_json() -> dict[str, Any]:
    command = [sys.executable, "-m", "slipstream", "top", "--once", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def top() -> None:
    """All ranks are shown; one that is stopped does not answer, and holds nobody up."""
    pids = [int(pid) for pid in slipstream.all_gather(np.array([os.getpid()]))]
    for _ in range(3):
        slipstream.all_reduce(np.ones(1 << 18, np.float32))
        slipstream.mark_step()
    slipstream.barrier()  # all have marked their steps
    if slipstream.rank() == 0:
        found = top_json()
        assert [one["rank"] for one in found["ranks"]] == [0, 1, 2]
        assert all(one["steps"] == 2 and one["step"] > 0 for one in found["ranks"]), found
        os.kill(pids[1], signal.SIGSTOP)
        try:
            states = [one["state"] for one in top_json()["ranks"]]
        finally:
            os.kill(pids[1], signal.SIGCONT)
        assert states[1] == "no answer"
        assert "no answer" not in (states[0], states[2])
    slipstream.barrier()


def strangers() -> None:
    """Nobody is answered who does not prove that they may ask."""
    job = jobs.current()
    assert job.questions is not None
    places, key, name = job.questions.places, key_of(job), name_of(job)
    other = places[1 - slipstream.rank()]
    assert key != job.membership.secret
    assert ask(other, bytes(32), name, seconds=0.5) is None
    assert ask(other, job.membership.secret, name, seconds=0.5) is None
    assert ask(other, key, "another job", seconds=0.5) is None
    found = ask(other, key, name)
    assert found is not None
    assert found["rank"] == 1 - slipstream.rank()
    assert [one and one["rank"] for one in ask_all([None, *places], key, name)] == [None, 0, 1]
    slipstream.barrier()


def dies() -> None:
    """Rank 1 is killed; rank 0 gets an error, and its summary says what it knows."""
    slipstream.all_reduce(np.ones(1 << 18, np.float32))
    if slipstream.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(SlipstreamError):
        slipstream.barrier()


def forks() -> None:
    """A child neither answers nor sums up; the parent goes on doing so."""
    child = os.fork()
    if child == 0:
        sys.exit(0)  # as a data loader's worker ends
    assert os.waitpid(child, 0)[1] == 0
    strangers()


def ddp(folder: str) -> None:
    """Steps of an unmodified DDP program are seen, with the waits of its reducer."""
    import torch
    import torch.distributed as dist

    import slipstream.torch  # noqa: F401  (it watches optimizers, too: no step may count twice)

    torch.manual_seed(0)
    rank, size = int(os.environ["SLIPSTREAM_RANK"]), int(os.environ["SLIPSTREAM_SIZE"])
    dist.init_process_group("slipstream", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(6):
        if dist.get_rank() == 0 and number:
            time.sleep(0.1)  # rank 1 waits for it, through a future
        optimizer.zero_grad()
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()
    (recorder,) = recorders()
    assert recorder.snapshot()["faces"] == ["slipstream.torch", "torch.distributed"]
    steps = recorder.steps()
    assert steps["count"] == 5, steps
    exposed = steps["all"]["exposed"]
    assert exposed > 0.05 if dist.get_rank() == 1 else exposed < 0.1, steps
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    case = sys.argv[1]
    if case != "ddp":
        slipstream.init()
    globals()[case](*sys.argv[2:])
    if case != "ddp":
        slipstream.shutdown()
