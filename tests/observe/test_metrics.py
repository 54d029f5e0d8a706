"""The metrics of real jobs: counters, the port, what is shown at the end and while they run, and what may go wrong."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from comm import ranks
from slipstream.launch.torch_rendezvous import master_port

RANK = Path(__file__).with_name("metrics_rank.py")


def run(tmp_path: Path, case: str, *args: str, n: int = 2, transport: str = "shm", **env: str) -> list[str]:
    env = {"XDG_RUNTIME_DIR": str(tmp_path), **env}
    return ranks.run(RANK, n, transport=transport, args=[case, *args], env=env)


def summary(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
def test_every_operation_is_counted_once(tmp_path: Path, transport: str) -> None:
    run(tmp_path, "counts", transport=transport)


def test_what_nobody_waits_for_is_hidden(tmp_path: Path) -> None:
    run(tmp_path, "hidden", transport="tcp")


def test_the_summary_names_the_rank_whose_compute_is_slow(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    run(tmp_path, "compute", "2", n=4, SLIPSTREAM_SUMMARY=str(file))
    found = summary(file)
    assert found["unknown"] == []
    assert found["steps"]["count"] == 24
    assert found["straggler"]["ranks"] == [2]
    assert found["straggler"]["cause"] == "compute"
    assert any("rank 2" in one for one in found["advice"])


@pytest.mark.parametrize("board", ["on", "off"])
def test_the_summary_names_the_rank_that_comes_late_to_small_operations(tmp_path: Path, board: str) -> None:
    file = tmp_path / "run.json"
    run(tmp_path, "late", "2", n=3, SLIPSTREAM_SUMMARY=str(file), SLIPSTREAM_BOARD=board)
    assert summary(file)["straggler"]["ranks"] == [2]
    assert summary(file)["straggler"]["cause"] == "late"


def test_rank_0_alone_prints_the_summary(tmp_path: Path) -> None:
    first, second = run(tmp_path, "compute", "0", SLIPSTREAM_SUMMARY="1")
    assert "slipstream: summary of job 'job': 2 ranks" in first
    assert "straggler      rank 0" in first
    assert "summary" not in second


def free_ports() -> int:
    """A port that is free, and so is the next one."""
    for _ in range(50):
        port = master_port(local=True)  # none of those that the system gives to whoever asks for any
        try:
            socket.create_server(("127.0.0.1", port + 1)).close()
        except OSError:
            continue
        return port
    raise AssertionError("there are no two free ports")


def test_each_rank_serves_its_metrics(tmp_path: Path) -> None:
    port = free_ports()
    run(tmp_path, "port", str(port), SLIPSTREAM_METRICS_PORT=str(port))


def test_a_port_that_is_taken_is_a_warning_that_says_by_whom(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        first, _ = run(tmp_path, "works", SLIPSTREAM_METRICS_PORT=str(port))
    assert f"slipstream: rank 0: no metrics of this rank: cannot listen on 127.0.0.1 port {port}" in first
    assert f"process {os.getpid()}" in first


def test_top_shows_all_ranks_also_while_one_is_stopped(tmp_path: Path) -> None:
    run(tmp_path, "top", n=3)
    assert not list((tmp_path / "slipstream").iterdir())  # what a job leaves there goes with it


def test_only_who_may_ask_is_answered(tmp_path: Path) -> None:
    run(tmp_path, "strangers")


def test_a_rank_that_dies_does_not_hold_the_summary_up(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "SLIPSTREAM_SUMMARY": str(file)}
    with ranks.started(RANK, 2, args=["dies"], env=env) as found:
        assert found[0].process.wait(60) == 0, found[0].text()
    assert summary(file)["unknown"] == [1]


def test_a_forked_child_is_no_part_of_it(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    run(tmp_path, "forks", SLIPSTREAM_SUMMARY=str(file))
    assert summary(file)["unknown"] == []


def test_a_summary_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "run.json"
    with ranks.started(RANK, 1, args=["works"], env={"SLIPSTREAM_SUMMARY": str(file)}) as (first,):
        assert first.process.wait(60) == 1
        text = first.text()
    assert f"CannotWrite: rank 0 cannot write its summary {file}: there is no folder {file.parent}" in text
    assert "metrics_follow" not in text  # the traceback is the user's own


def test_a_summary_that_cannot_be_written_at_the_end_is_printed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    file = tmp_path / "folder" / "run.json"
    first, _ = run(tmp_path, "removes", str(file.parent), SLIPSTREAM_SUMMARY=str(file))
    assert f"slipstream: rank 0: the summary cannot be written to {file}: No such file or directory" in first
    assert "slipstream: summary of job 'job': 2 ranks" in first


def test_what_the_start_of_a_job_measures_is_not_the_programs(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    run(tmp_path, "works", transport="mixed", SLIPSTREAM_SUMMARY=str(file))
    (row,) = summary(file)["operations"]
    assert (row["collective"], row["count"]) == ("all_reduce", 1)


def test_without_a_directory_of_ones_own_a_job_runs_unseen(tmp_path: Path) -> None:
    (tmp_path / "slipstream").mkdir(mode=0o755)
    (tmp_path / "slipstream").chmod(0o755)  # others could look into it
    run(tmp_path, "works")
    assert not list((tmp_path / "slipstream").iterdir())


def test_steps_of_ddp_are_seen_with_the_waits_of_its_reducer(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run(tmp_path, "ddp", str(tmp_path))
