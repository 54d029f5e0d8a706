"""The benchmarks themselves: targets, and that each script measures and notices what is wrong.

python -m pytest benchmarks
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import allreduce
import collectives
import ddp
import lanes
import many_ranks
import network
import overhead
import protection
import targets

from slipstream.bench import jobs
from slipstream.bench.judgements import judgement_table


def _record(ratio: float, idle: float | None = 0.001, ranks: int = 2) -> dict[str, Any]:
    row = {"ratio": {"gloo": {"value": ratio, "low": ratio, "high": ratio}}}
    return {
        "ranks": ranks,
        "idle_cpu": idle,
        "sizes": [{"bytes": 64 << 20, "contenders": {"slipstream": row}}],
    }


@pytest.mark.parametrize(("ratio", "ranks", "met"), [(3.0, 2, True), (2.9, 2, False), (2.9, 4, True)])
def test_bandwidth_target(ratio: float, ranks: int, met: bool) -> None:
    bandwidth, idle = targets.judge([_record(ratio, ranks=ranks)])
    assert bandwidth.met is met
    assert idle.met
    assert ("NOT MET" in judgement_table([bandwidth])) is not met


def test_idle_target_is_missed_by_a_busy_engine() -> None:
    assert [one.met for one in targets.judge([_record(3.0, idle=0.01)])] == [True, False]
    assert len(targets.judge([_record(3.0, idle=None)])) == 1
    assert targets.judge([_record(3.0, idle=None, ranks=3)]) == []


def test_allreduce_measures_and_judges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    given = ["--np", "2", "--repeats", "1", "--sizes", "4,64K", "--against", "slipstream-shared"]
    assert allreduce.main([*given, "--json", str(path), "--limit", "100"]) == 0
    (record,) = json.loads(path.read_text())
    assert [size["bytes"] for size in record["sizes"]] == [4, 65536]
    assert set(record["sizes"][0]["contenders"]) == {"slipstream", "slipstream-shared"}
    assert record["transport"] == "shm"
    assert record["idle_cpu"] >= 0
    assert "idle engine" in capsys.readouterr().out


def test_allreduce_reports_a_wrong_sum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    given = ["--np", "2", "--repeats", "1", "--sizes", "4K", "--against", "", "--limit", "100"]
    assert allreduce.main([*given, "--inject-error", "--json", str(path)]) == 1
    assert not path.exists()
    assert "WRONG RESULT: slipstream, 4096 B: 1 wrong elements" in capsys.readouterr().err


def test_overhead_measures_every_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", ["overhead.py", "--np", "1", "--repeats", "1", "--json", str(path)])
    assert overhead.main() == 0
    (job,) = json.loads(path.read_text())["jobs"]
    c10d = {"c10d all_reduce", "c10d async", "c10d all_reduce, gloo"}
    assert {"native", "addresses", "comm", "torch allreduce_"} | c10d <= set(job["us_per_call"])
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
    monkeypatch.setattr(jobs, "run", lambda *_, **__: iter([{"ranks": ranks}]))
    path = tmp_path / "result.json"
    assert ddp.main(["--np", "2", "--bucket-mb", "25", "--json", str(path)]) == 1
    assert not path.exists()
    printed = capsys.readouterr()
    assert "3.00x" in printed.out
    assert "on rank 1 parameters differ by nan" in printed.err


def test_cpu_time_of_both_contenders() -> None:
    found = lanes.cpu_time(1 << 20, calls=2, repeats=3)
    assert list(found) == ["slipstream", "gloo"]
    for times in found.values():
        assert len(times["cpu"]) == len(times["wall"]) == 3
        assert min(times["cpu"] + times["wall"]) > 0


@pytest.mark.parametrize(("ours", "met"), [(0.7, True), (0.71, False)])
def test_cpu_time_is_judged(ours: float, met: bool) -> None:
    used = {"slipstream": {"cpu": [ours, 0.1, 9.0]}, "gloo": {"cpu": [1.0, 2.0, 0.5]}}
    (judged,) = lanes.judge({"loopback": {"cpu": used}})
    assert (judged.met, judged.measured) == (met, f"{ours:.2f}x")
    assert lanes.judge({"paths": {}}) == []


def test_many_ranks_are_measured() -> None:
    found = many_ranks.measure(2, starts=1, calls=2, repeats=3)
    assert len(found["start"]) == 1
    for links in ("few", "all"):
        of_links = found["found"][links]
        assert [len(times) for times in of_links["seconds"]] == [3, 3]
        assert min(min(times) for times in of_links["seconds"]) > 0
        assert min(of_links["bytes"]) > 1 << 20
    assert many_ranks.judge(found) == []  # of 64 ranks alone is anything wanted


@pytest.mark.parametrize(("mib", "ms", "met"), [(8, 5, [True, True]), (8.1, 5.1, [False, False])])
def test_64_ranks_are_judged(mib: float, ms: float, met: list[bool]) -> None:
    few = {"seconds": [[ms / 2e3], [ms / 1e3]], "bytes": [mib * (1 << 20), mib * (1 << 20)]}
    assert [one.met for one in many_ranks.judge({"ranks": 64, "found": {"few": few}})] == met


def test_protection_measures_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert protection.main(["loopback", "--repeats", "1", "--seconds", "0.1"]) == 0
    cells = [
        line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if "loopback" in line
    ]
    assert cells == [f"loopback, {kind}" for kind in ("plain", "checksums", "encrypted")]


def test_collectives_are_measured_and_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    given = [
        "--np",
        "2",
        "--repeats",
        "1",
        "--sizes",
        "4,4K",
        "--collectives",
        "gather,barrier",
        "--against",
        "gloo",
    ]
    assert collectives.main([*given, "--json", str(path), "--limit", "100"]) == 0
    names = [(record["collective"], len(record["sizes"])) for record in json.loads(path.read_text())]
    assert names == [("gather", 2), ("barrier", 1)]
    assert "| barrier |" in capsys.readouterr().out
    assert collectives.main(["--collectives", "gatter"]) == 2


def test_collectives_that_are_slower_are_named() -> None:
    def row(name: str, nbytes: int, gloo: float, mpi: float, ranks: int = 2) -> dict[str, Any]:
        ratio = {"gloo": {"value": gloo}, "mpi": {"value": mpi}}
        return {"collective": name, "ranks": ranks, "bytes": nbytes, "median": 1.0, "ratio": ratio}

    rows = [
        row("all_reduce", 4, 9, 0.6),
        row("gather", 64 << 20, 3.5, 1.5),
        row("scatter", 64 << 20, 2.9, 1.2),
    ]
    judged = {one.text: one for one in collectives.judge({"rows": rows})}
    beside_gloo = judged["2 processes, 64 MiB: every collective, speed relative to gloo"]
    assert (beside_gloo.met, beside_gloo.measured) == (False, "all but scatter 2.90x")
    assert not judged["2 processes, 64 MiB: every collective, speed relative to Open MPI"].met
    assert judged["2 processes, all_reduce of 4 B, speed relative to Open MPI"].met
    assert judged["sizes at which a collective is slower than gloo"].met
    slower = collectives.judge({"rows": [row("reduce", 4096, 0.9, 1, ranks=8)]})[-1]
    assert (slower.met, slower.measured) == (False, "reduce of 4 KiB, 8 processes")
    alone = row("barrier", 4, 1, 0.1)
    del alone["ratio"]["gloo"]
    assert [one.met for one in collectives.judge({"rows": [alone]})] == [False]  # nothing is said of gloo


def test_collectives_of_a_host_may_be_measured_by_numbers_of_ranks() -> None:
    def record(ranks: int, repeats: int, *names: str) -> dict[str, Any]:
        machine, versions = {"load_1min": ranks}, {"python": "3"}
        rows = [{"collective": name, "ranks": ranks, "bytes": 4, "median": repeats} for name in names]
        return {"date": "d", "machine": machine, "versions": versions, "repeats": repeats, "rows": rows}

    both = collectives.joined(record(4, 9, "gather", "reduce"), record(2, 5, "scatter"))
    both = collectives.joined(both, record(4, 7, "gather"))
    rows = [(row["ranks"], row["collective"], row["median"]) for row in both["rows"]]
    assert rows == [(2, "scatter", 5), (4, "reduce", 9), (4, "gather", 7)]
    assert both["repeats"] == 5


def test_collectives_of_a_lab_may_be_measured_one_by_one() -> None:
    machine = {"cpu": "one", "cores": 2, "load_1min": 0.1}

    def record(name: str, ratio: float, load: float, **other: Any) -> dict[str, Any]:
        row = {"collective": name, "ranks": 4, "bytes": 4, "ratio": {"gloo": {"value": ratio}}}
        return {
            "date": "2026-11-26",
            "machine": machine | {"load_1min": load},
            "versions": {"python": "3"},
            "repeats": 9,
            "lab": ["--hosts", "4"],
            "rows": [row],
            "runs": [{"collectives": [name], "load_1min": load}],
        } | other

    both = network.joined(record("gather", 0.9, 0.1), record("all_reduce", 2.0, 0.2))
    assert [row["collective"] for row in both["rows"]] == ["all_reduce", "gather"]
    again = network.joined(both, record("gather", 1.1, 0.3))
    assert [row["ratio"]["gloo"]["value"] for row in again["rows"]] == [2.0, 1.1]
    assert [(run["collectives"], run["load_1min"]) for run in again["runs"]] == [
        (["all_reduce"], 0.2),
        (["gather"], 0.3),
    ]
    for other in (
        {"date": "2026-11-27"},
        {"versions": {}},
        {"machine": machine | {"cores": 4}},
        {"repeats": 5},
    ):
        with pytest.raises(ValueError, match="record of another"):
            network.joined(both, record("gather", 1.0, 0.1, **other))
