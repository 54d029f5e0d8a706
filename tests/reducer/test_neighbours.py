"""Two jobs share two reducers, and one of them misbehaves: the sums of the other stay right, and it goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest

from reducer import cluster
from reducer.cluster import needs_lab
from reducer.service import wait_for
from slipstream.lab import Lab

RANK = Path(__file__).with_name("losses_rank.py")
ROGUE = Path(__file__).with_name("rogue.py")
WINDOW = float(os.environ.get("REDUCER_WINDOW", "4"))  # seconds that a rate is measured over
ROUNDS = int(os.environ.get("REDUCER_ROUNDS", "3"))
ROGUES = ("data", "early", "offers", "pings", "sizes", "twice")


@contextmanager
def rogues(lab: Lab, folder: Path, mode: str, host: str) -> Iterator[None]:
    """One for each reducer, on a host that no rogue was on before; they have begun."""
    with contextlib.ExitStack() as stack:
        outputs = []
        for name in ("r1", "r2"):
            outputs.append(folder / f"{mode}-{name}-{time.monotonic_ns()}")
            command = [sys.executable, str(ROGUE), mode, lab.address(name), str(cluster.PORT)]
            with outputs[-1].open("wb") as out:
                process = lab.popen(host, command, env=cluster.ENVIRONMENT, stdout=out, stderr=out)
            stack.callback(process.wait)
            stack.callback(process.kill)
        wait_for(lambda: all("session" in output.read_text() for output in outputs), f"rogues ({mode})")
        yield
        assert not any("Traceback" in output.read_text() for output in outputs)


@contextmanager
def good(lab: Lab, folder: Path) -> Iterator[cluster.Job]:
    """A second job that behaves."""
    own = folder / f"good-{time.monotonic_ns()}"
    with cluster.job(lab, own, ["h5", "h6"], [str(RANK), str(own)]) as job:
        job.wait_for(lambda: job.uses("11"), "work of the second job")
        yield job


def ranks_of(folder: Path) -> list[int]:
    """The processes of a job's ranks."""
    found, arguments = [], [str(RANK).encode(), str(folder).encode()]
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cmdline").read_bytes().split(b"\0")[1:3] == arguments:
                found.append(int(entry.name))
    return found


@contextmanager
def stopped(lab: Lab, folder: Path) -> Iterator[None]:
    """A second job whose ranks have been stopped: it reads nothing any more, and says nothing."""
    with good(lab, folder) as job:
        ranks = ranks_of(job.folder)
        assert len(ranks) == job.workers
        for rank in ranks:
            os.kill(rank, signal.SIGSTOP)
        try:
            yield
        finally:
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)


def rate(job: cluster.Job) -> float:
    """Steps a second, over a while; AssertionError if there are none."""
    begin = job.turns()[-1]
    job.wait_for(lambda: job.turns()[-1][1] > begin[1] + WINDOW, "further steps")
    end = job.turns()[-1]
    return (end[0] - begin[0]) / (end[1] - begin[1])


@pytest.mark.slow
@pytest.mark.timeout(120 + 60 * ROUNDS)
@needs_lab
def test_a_job_beside_one_that_misbehaves(tmp_path: Path) -> None:
    found: dict[str, list[float]] = {}
    with (
        Lab(6 + ROUNDS * len(ROGUES), reducers=2, rate="500mbit") as lab,
        cluster.reducers(lab, tmp_path) as servers,
        cluster.job(lab, tmp_path / "job", lab.hosts[:4], [str(RANK), str(tmp_path / "job")]) as job,
    ):
        job.wait_for(lambda: job.uses("11") and job.turns(), "work with all reducers")
        fresh = iter(lab.hosts[6:])  # where a rogue was once, the next one would have to wait
        for _ in range(ROUNDS):
            found.setdefault("alone", []).append(rate(job))
            for name, beside in (("good", good), ("stopped", stopped)):
                with beside(lab, tmp_path):
                    found.setdefault(name, []).append(rate(job))
            for mode in ROGUES:
                with rogues(lab, tmp_path, mode, next(fresh)):
                    found.setdefault(mode, []).append(rate(job))
        lost, memory = max(job.lost()), servers.memory()
        for process in servers.running.values():
            assert process.poll() is None
        job.stop()  # AssertionError if a sum was wrong
    rates = {name: round(median(values), 2) for name, values in found.items()}
    print(json.dumps({"steps/s": rates, "all": found, "lost": lost, "most memory": memory}))
