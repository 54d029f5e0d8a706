"""`reducers.py`: what its records say, what it measures without a lab, and what it does when a part fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import reducers
import reducers_report as report

from reducer import service
from reducer.service import wait_for

_MIB = 1 << 20


def _lab(
    seconds: dict[str, float], *, workers: int = 4, nbytes: int = 16 * _MIB, slow: int = 0
) -> dict[str, Any]:
    """A record in which each contender took ``seconds`` times M/B."""
    unit = 8 * nbytes / 500e6
    contenders = {name: {"samples": [unit * one] * 5, "way": "some"} for name, one in seconds.items()}
    rates = [100e6 if number >= workers - slow else 500e6 for number in range(workers)]
    sizes = [{"bytes": nbytes, "contenders": contenders}]
    return {"workers": workers, "rate": 500e6, "reducer_rates": rates, "sizes": sizes, "idle": 0.25}


_GOOD = {"reducers-4": 1.05, "reducers-2": 1.25, "ring": 1.51, "gloo": 1.6}


def test_formula_is_that_of_sizing_for_the_rates_that_are_there() -> None:
    unit = 8 * _MIB / 500e6
    equal, slow = _lab(_GOOD), _lab(_GOOD, slow=1)
    assert report.formula_seconds(equal, _MIB, 0) == pytest.approx(1.5 * unit)
    assert report.formula_seconds(equal, _MIB, 2) == pytest.approx(1.2 * unit)
    assert report.formula_seconds(equal, _MIB, 4) == pytest.approx(unit)
    assert report.formula_seconds(slow, _MIB, 3) == pytest.approx(24 / 22 * unit)
    assert report.formula_seconds(slow, _MIB, 4) == pytest.approx(24 / 22.4 * unit)


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, []),
        ({"reducers-4": 1.09}, ["algorithm bandwidth"]),
        ({"reducers-2": 1.31}, ["2 of the reducers"]),
        ({"reducers-2": 1.1}, ["2 of the reducers"]),
        ({"ring": 1.4}, ["relative to ring"]),
        ({"gloo": 1.4}, ["relative to gloo"]),
    ],
)
def test_targets_of_four_workers(changes: dict[str, float], missed: list[str]) -> None:
    judgements = report.judge({"four": _lab(_GOOD | changes)})
    assert len(judgements) == 4
    found = [judgement.text for judgement in judgements if not judgement.met]
    assert len(found) == len(missed)
    assert all(words in text for words, text in zip(missed, found, strict=True))


def test_targets_of_eight_workers_and_of_small_messages() -> None:
    eight = {"reducers-8": 1.05, "ring": 1.75, "gloo": 1.0}
    assert [one.met for one in report.judge({"eight": _lab(eight, workers=8)})] == [True]
    assert [one.met for one in report.judge({"eight": _lab(eight | {"ring": 1.6}, workers=8)})] == [False]
    for one, met in ((1.6, True), (1.8, False)):
        judgements = report.judge({"eight": _lab(eight | {"reducers-1": one}, workers=8)})
        assert [judgement.met for judgement in judgements] == [met, True]
    small = {"reducers-8": 0.5, "reducers-1": 0.7, "through-1": 0.59, "ring": 1.0, "choice": 0.6}
    assert [one.met for one in report.judge({"small": _lab(small, workers=8)})] == [True, False, True]
    assert report.judge({"slow": _lab(_GOOD)}) == []


def test_target_of_sums() -> None:
    kernel = {"bytes": 1024, "inputs": 4, "sum": [1.6e9, 1.6e9], "copy": [8e9]}
    assert [one.met for one in report.judge({"sums": {"kernels": [kernel]}})] == [True]
    assert [one.met for one in report.judge({"sums": {"kernels": [kernel | {"sum": [1.4e9]}]}})] == [False]


def test_page_shows_the_formula_beside_what_was_measured() -> None:
    step = {"median": 9.0, "samples": [9.0] * 5}
    ours = {"step": step, "cost_per_1000_steps": 4.0, "ratio": {"gloo": {"value": 1.5}}}
    train = {
        "options": {"seconds": 0.1, "repeats": 5, "steps": 1, "worker_price": 30.0, "reducer_price": 0.7},
        "bytes": 553e6,
        "reducers": {"r1:1": True, "r2:1": True},
        "contenders": {
            "slipstream": ours | {"relative_cost": {"gloo": 0.7}},
            "gloo": {"step": step, "cost_per_1000_steps": 6.0},
        },
    }
    kernel = {"bytes": 1024, "inputs": 4, "sum": [1.6e9], "copy": [8e9]}
    sums = {"kernels": [kernel], "processes": [{"what": "1", "cpu_per_gb": [0.5]}]}
    text = report.page({"four": _lab(_GOOD), "sums": sums, "train": {"vgg16": train}})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    four = "4 workers and 4 reducers"
    assert [four, "2", "16 MiB", "322.12 ms", "335.54 ms", "+4.2 %"] in rows
    assert [four, "0", "16 MiB", "402.65 ms", "405.34 ms", "+0.7 %"] in rows
    assert ["memcpy out of cache: CPU seconds for a GB", "0.125 s", "0.125 to 0.125", "1"] in rows
    assert ["whole reducers, 1: input a CPU second", "2 GB", "2 to 2", "1"] in rows
    assert ["vgg16", "slipstream, 2 reducers", "9.00 s", "5", "", "4", ""] in rows
    assert ["vgg16", "gloo", "9.00 s", "5", "1.50x", "6", "70.0 %"] in rows
    assert "NOT MET" not in text
    assert "four 25 %." in text
    assert report.page({}) == ""


def test_a_rank_measures_all_contenders(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    given = ["run", "-np", "2", "--no-prefix", "-e", f"SLIPSTREAM_REDUCER_SECRET={service.SECRET.hex()}"]
    with service.started(tmp_path) as one, service.started(tmp_path) as other:
        task = {
            "reducers": [f"127.0.0.1:{reducer.port}" for reducer in (one, other)],
            "contenders": ["reducers-2", "reducers-1", "through-2", "ring", "choice", "gloo"],
            "sizes": [4096, 256 << 10],
            "repeats": 2,
            "warmup": 0,
        }
        rank = [sys.executable, str(Path(reducers.__file__).with_name("reducers_rank.py")), json.dumps(task)]
        out = subprocess.run(
            [sys.executable, "-m", "slipstream", *given, "--", *rank],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"SLIPSTREAM_TRANSPORT": "tcp"},  # as if each rank had a host
        ).stdout
        wait_for(lambda: one.metrics()["jobs"] == other.metrics()["jobs"] == 0, "the end of the jobs")
        assert one.metrics()["registered_total"] == 3
        assert one.metrics()["received_bytes_total"] > other.metrics()["received_bytes_total"] > 0
    small, large = (json.loads(line) for line in out.splitlines())
    assert (small["bytes"], large["bytes"]) == (4096, 256 << 10)
    for row in (*small["contenders"].values(), *large["contenders"].values()):
        assert len(row["samples"]) == 2
        assert min(row["samples"]) > 0
        assert row["wrong"] == 0
        assert not row.get("unused")
    assert small["contenders"]["through-2"]["way"] == "reducers"
    ways = {name: row.get("way") for name, row in large["contenders"].items()}
    assert ways["reducers-2"] == ways["reducers-1"] == ways["through-2"] == "reducers"
    assert ways["ring"] == "ring"


def test_kernels_are_measured() -> None:
    found = reducers.kernel_rates(64 << 10, 4, 2)
    assert (found["bytes"], found["inputs"]) == (64 << 10, 4)
    for name in ("sum", "copy"):
        assert len(found[name]) == 2
        assert min(found[name]) > 0


def test_a_part_that_fails_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> dict[str, Any]:
        raise subprocess.CalledProcessError(3, "ranks")

    monkeypatch.setattr(reducers, "_PARTS", {"slow": fail, "four": lambda *_: _lab(_GOOD)})
    path = tmp_path / "result.json"
    assert reducers.main(["--quick", "--json", str(path)]) == 2
    assert json.loads(path.read_text())["four"] == _lab(_GOOD)
    assert "slow: " in capsys.readouterr().err
    monkeypatch.setattr(reducers, "_PARTS", {"four": lambda *_: _lab(_GOOD | {"ring": 1.4})})
    assert reducers.main(["--quick"]) == 0
    assert reducers.main(["--quick", "--strict"]) == 3


def test_nothing_is_kept_of_wrong_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(*_: Any) -> dict[str, Any]:
        raise reducers.WrongResult("ring, 4 bytes: 1 wrong elements")

    monkeypatch.setattr(reducers, "_PARTS", {"four": spoil})
    path = tmp_path / "result.json"
    assert reducers.main(["--quick", "--json", str(path)]) == 1
    assert not path.exists()
    assert "WRONG RESULT: four: ring" in capsys.readouterr().err


def test_saving_keeps_other_parts_of_the_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = tmp_path / "reducers.md"
    document.write_text("a\n<!-- reducers: begin -->\nold\n<!-- reducers: end -->\nb\n")
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(reducers, "_HERE", tmp_path)
    monkeypatch.setattr(reducers, "_DOCUMENT", document)
    for name, record in (("four", _lab(_GOOD)), ("eight", _lab({"reducers-8": 1.1, "ring": 1.8}, workers=8))):
        monkeypatch.setattr(reducers, "_PARTS", {name: lambda *_, record=record: record})
        assert reducers.main(["--save"]) == 0
    (path,) = (tmp_path / "results").iterdir()
    assert {"benchmark", "date", "machine", "four", "eight"} == set(json.loads(path.read_text()))
    text = document.read_text()
    assert text.startswith("a\n")
    assert text.endswith("b\n")
    assert "old" not in text
    assert "8 workers and 8 reducers" in text
    assert "4 workers and 4 reducers" in text
