"""The benchmarks themselves: what they compute, and that they notice wrong results.

python -m pytest benchmarks
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import allreduce
import allreduce_rank
import ddp
import jobs
import overhead
import report

RECORD_MACHINE = {"cpu": "a", "cores": 2, "memory_gib": 1, "kernel": "6", "load_1min": 0.0}
FLOAT_MAX = float(np.finfo(np.float32).max)


def _rank(seconds: dict[str, list[float]], nbytes: int = 64 << 20) -> dict[str, Any]:
    return {
        "sizes": [{"bytes": nbytes, "calls": 1, "seconds": seconds}],
        "memory": {"bytes": 10**9, "copy": [0.2, 0.1, 0.3], "add": [0.1, 0.2, 0.2]},
        "idle_cpu": 0.001,
        "mistakes": [],
        "versions": {},
    }


def test_a_repeat_lasts_as_long_as_its_slowest_rank() -> None:
    ours, gloo = {"slipstream": [1.0, 5.0, 1.0]}, {"gloo": [6.0, 6.0, 6.0]}
    job = report.summarise([_rank(ours | gloo), _rank({"slipstream": [2.0, 1.0, 4.0]} | gloo)])
    row = job["sizes"][0]["contenders"]["slipstream"]
    assert row["samples"] == [2.0, 5.0, 4.0]
    assert (row["median"], row["min"], row["p90"]) == (4.0, 2.0, 5.0)
    assert row["ratio"] == {"gloo": 1.5}
    assert row["algbw"] == row["busbw"] == (64 << 20) / 4.0


def test_the_limit_is_one_read_and_one_write_of_all_ranks() -> None:
    slow = _rank({"slipstream": [1.0]})
    slow["memory"]["copy"] = [0.1, 0.4, 0.5]  # with the other rank: 0.2, 0.4, 0.5
    job = report.summarise([_rank({"slipstream": [1.0]}), slow])
    assert job["memory"] == pytest.approx({"copy": 5e9, "add": 10e9, "traffic": 30e9})
    assert job["sizes"][0]["limit"] == pytest.approx(2 * 2 * (64 << 20) / 30e9)
    small = report.summarise([_rank({"slipstream": [1.0]}, 4)] * 2)
    assert small["sizes"][0]["limit"] is None


@pytest.mark.parametrize(("seconds", "met"), [(1.0, True), (2.0, True), (2.1, False)])
def test_bandwidth_target(seconds: float, met: bool) -> None:
    job = report.summarise([_rank({"slipstream": [seconds], "gloo": [6.0]})] * 2)
    bandwidth, idle = report.check_targets([job])
    assert bandwidth.met is met
    assert idle.met
    record = {
        "date": "",
        "machine": RECORD_MACHINE,
        "versions": {"python": "3"},
        "missing": {"mpi": "no mpirun"},
    }
    text = report.record_text(record | {"transport": "shm", "repeats": 1, "jobs": [job]}, [bandwidth])
    assert ("NOT MET" in text) is not met
    assert "Missing: mpi (no mpirun)." in text


def test_idle_target_is_missed_by_a_busy_engine() -> None:
    busy = _rank({"slipstream": [1.0]}) | {"idle_cpu": 0.01}
    assert [t.met for t in report.check_targets([report.summarise([busy, busy])])] == [False]


def test_saved_results_replace_those_of_the_document() -> None:
    path = Path(report.__file__).parent.parent / "docs" / "benchmarks.md"
    once = report.replace_results(path.read_text(), "first table")
    twice = report.replace_results(once, "second table")
    assert "first table" in once
    assert "first table" not in twice
    assert twice == once.replace("first", "second")
    with pytest.raises(ValueError, match="lacks"):
        report.replace_results("no marks", "table")


@pytest.mark.parametrize(("text", "nbytes"), [("4", 4), ("4K", 4096), ("64m", 64 << 20), ("1G", 1 << 30)])
def test_sizes(text: str, nbytes: int) -> None:
    assert allreduce.parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "6", "4X", "-4", "K", "4.5K"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        allreduce.parse_size(text)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 64])
@pytest.mark.parametrize("nbytes", [4, 4096, 1 << 20])
def test_values_of_a_batch(ranks: int, nbytes: int) -> None:
    """Repeated sums end at the expected values, finite and normal; one wrong bit of one call does not."""
    calls = allreduce_rank.calls_per_batch(nbytes, ranks)
    values = [allreduce_rank.Values(nbytes // 4, rank, ranks, calls) for rank in range(ranks)]
    arrays = [np.empty(nbytes // 4, dtype=np.float32) for _ in values]
    for value, array in zip(values, arrays, strict=True):
        value.fill(array)
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    for _ in range(calls - 1):
        total *= np.float32(ranks)
    assert values[0].mistake(total) is None
    assert np.finfo(np.float32).tiny < float(total.min())
    assert float(total.max()) < FLOAT_MAX
    for wrong in (total[-1] * 1.001, np.nan, np.inf, 0.0):
        spoiled = total.copy()
        spoiled[-1] = wrong
        mistake = values[0].mistake(spoiled)
        assert mistake is not None
        assert f"element {total.size - 1} of" in mistake


def _run(tmp_path: Path, *arguments: str) -> tuple[int, Path]:
    path = tmp_path / "result.json"
    given = ["--np", "2", "--repeats", "2", "--peers", "", "--json", str(path), *arguments]
    return allreduce.main(given), path


def test_a_run_measures_every_contender(tmp_path: Path) -> None:
    code, path = _run(tmp_path, "--sizes", "4,64K", "--limit", "120")
    assert code == 0
    record = json.loads(path.read_text())
    (job,) = record["jobs"]
    assert [size["bytes"] for size in job["sizes"]] == [4, 65536]
    for size in job["sizes"]:
        assert {"slipstream", "slipstream-shared"} <= set(size["contenders"])
        for row in size["contenders"].values():
            assert len(row["samples"]) == 2
            assert min(row["samples"]) > 0
    assert record["missing"].keys() <= {"slipstream-torch"}


def test_a_wrong_sum_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, path = _run(tmp_path, "--sizes", "4K", "--inject-error", "--limit", "120")
    assert code == 1
    assert not path.exists()
    assert "WRONG RESULT: slipstream, 4096 B, repeat 0, rank 1: element 512 of 1024" in capfd.readouterr().err


def test_a_rank_that_fails_ends_the_job(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        "import os, signal, sys\n"
        "if os.environ['RANK'] == '0': sys.exit(3)\n"
        "signal.pause()\n"  # would wait for ever
    )
    with pytest.raises(jobs.JobFailed, match="rank 0 ended with code 3"):
        jobs.run_ranks(script, [], 2, transport="shm", mpi=False, limit=60)


def test_overhead_measures_every_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", ["overhead.py", "--np", "1", "--repeats", "1", "--json", str(path)])
    assert overhead.main() == 0
    (job,) = json.loads(path.read_text())["jobs"]
    c10d = {"c10d all_reduce", "c10d async", "c10d all_reduce, gloo"}
    assert {"native", "raw", "comm", "torch allreduce_"} | c10d <= set(job["us_per_call"])
    assert min(job["us_per_call"].values()) > 0
    assert set(job["us_per_bucket"]) == {"slipstream", "gloo"}


def test_ddp_measures_steps_and_compares_parameters(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tqdm")
    path = tmp_path / "result.json"
    given = ["--np", "2", "--repeats", "2", "--bucket-mb", "0.05", "--json", str(path)]
    assert ddp.main(given) == 0
    (job,) = json.loads(path.read_text())["jobs"]
    assert job["buckets"] >= 8
    assert max(job["differences"]) <= 1e-5
    assert set(job["contenders"]) == {"slipstream", "gloo", "plain"}
    for row in job["contenders"].values():
        assert len(row["samples"]) == 2
        assert min(row["samples"]) > 0


def test_ddp_reports_parameters_that_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [
        {"seconds": {"slipstream": [1.0], "gloo": [3.0]}, "buckets": 1, "difference": d, "versions": {}}
        for d in (0.0, float("nan"))
    ]
    monkeypatch.setattr(jobs, "run_ranks", lambda *_, **__: ranks)
    path = tmp_path / "result.json"
    assert ddp.main(["--np", "2", "--bucket-mb", "25", "--json", str(path)]) == 1
    assert not path.exists()
    printed = capsys.readouterr()
    assert "3.00x" in printed.out
    assert "on rank 1 parameters differ by nan" in printed.err
