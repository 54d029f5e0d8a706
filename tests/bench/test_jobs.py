"""Ranks are started, reported by rank 0, and never left behind."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from slipstream.bench import jobs
from slipstream.launch.hosts import Host
from slipstream.launch.processes import descendants

HERE = Path(__file__).resolve().parent
HAS_MPI = shutil.which("mpirun") is not None and importlib.util.find_spec("mpi4py") is not None
LAUNCHERS = [
    False,
    pytest.param(True, marks=pytest.mark.skipif(not HAS_MPI, reason="no mpirun, or no mpi4py")),
]


def left() -> list[str]:
    """The ranks of any measurement that are still below this process."""
    found = []
    for pid in descendants(os.getpid()):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if "rank_for_jobs" in line or "slipstream.bench.collective.rank" in line:
            found.append(line)
    return found


def start(what: str, mpi: bool, limit: float = 60.0) -> Generator[dict[str, Any], None, None]:
    environment = {"PYTHONPATH": str(HERE), "TOLD": "so"}
    return jobs.run("rank_for_jobs", [what], jobs.Placement(2), mpi=mpi, limit=limit, environment=environment)


@pytest.mark.parametrize("mpi", LAUNCHERS)
def test_rank_0_reports_and_nobody_else(mpi: bool, capfd: pytest.CaptureFixture[str]) -> None:
    first, second = start("work", mpi)
    assert first == {"rank": 0, "told": "so", "long": "\t\\" * 100_000}
    assert second == {"all": [[0, ""], [1, "x"]], "first": 7}
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("a library talks") == 2
    assert printed.err.count("its C part") == 2
    assert not left()


@pytest.mark.parametrize("mpi", LAUNCHERS)
def test_a_rank_that_fails_ends_the_job(mpi: bool) -> None:
    with pytest.raises(jobs.JobFailed, match="ended with code 3"):
        list(start("fail", mpi))
    assert not left()


@pytest.mark.parametrize("mpi", LAUNCHERS)
def test_whoever_stops_listening_ends_the_job(mpi: bool) -> None:
    messages = start("hang", mpi)
    assert next(messages)["rank"] == 0
    assert len(left()) >= 2
    messages.close()
    assert not left()


def test_ranks_that_take_too_long_are_ended() -> None:
    with pytest.raises(jobs.JobFailed, match=r"longer than 0\.5 s"):
        list(start("hang", False, limit=0.5))
    assert not left()


def test_a_launcher_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(jobs.JobFailed, match="cannot run 'mpirun'"):
        list(start("work", True))


def test_command_of_mpi() -> None:
    hosts = (Host("h1", 2), Host("h2", 4))
    placement = jobs.Placement(3, hosts, "ssh -F config", "eth0")
    command = jobs.mpi_command(placement, ["SLIPSTREAM_SECRET"])
    text = " ".join(command)
    assert "--host h1:2,h2:1" in text
    assert command[command.index("plm_rsh_agent") + 1] == "ssh -F config"
    assert "btl_tcp_if_include eth0" in text
    assert command[-2:] == ["-x", "SLIPSTREAM_SECRET"]
    alone = jobs.mpi_command(jobs.Placement(2), [])
    assert "--host" not in alone
    assert "plm_rsh_agent" not in alone


def test_reducers_that_the_launcher_starts() -> None:
    hosts = (Host("localhost", 2), Host("127.0.0.1", 0, reducer=True))
    environment = {"PYTHONPATH": str(HERE), "SLIPSTREAM_TRANSPORT": "tcp", "TOLD": "so"}
    placement = jobs.Placement(2, hosts, reducers="auto")
    given = {"limit": 60.0, "environment": environment}
    _, found, _ = jobs.run("rank_for_jobs", ["reducers"], placement, mpi=False, **given)
    assert found == {"reducers": [True]}
    with pytest.raises(ValueError, match="auto is for slipstream run"):
        next(jobs.run("rank_for_jobs", [], placement, mpi=True, **given))


def test_placement() -> None:
    assert jobs.Placement(3).per_host() == [Host("localhost", 3)]
    assert jobs.Placement(3).one_host()
    assert not jobs.Placement(2, (Host("203.0.113.1", 2),)).one_host()
    with pytest.raises(ValueError, match="do not fit"):
        jobs.Placement(3, (Host("localhost", 2),)).per_host()
