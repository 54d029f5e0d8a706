"""Times, what was hidden, ratios and limits; and what people are shown of them."""

from __future__ import annotations

import io
import statistics
from pathlib import Path

import pytest

from bench.train.records import END, TURNS, start
from slipstream.bench import page
from slipstream.bench.samples import ratio, times
from slipstream.bench.train.plot import draw
from slipstream.bench.train.report import report
from slipstream.bench.train.summary import (
    cost,
    hidden,
    least_communication,
    least_step,
    summarise,
)
from slipstream.bench.view import showing


def test_summary_of_a_measurement() -> None:
    record = summarise(start(), TURNS, END, None)
    assert list(record["contenders"]) == ["plain", "slipstream", "gloo"]
    assert record["plain"] == pytest.approx(0.1)
    row = record["contenders"]["slipstream"]
    assert row["step"]["median"] == pytest.approx(0.13)
    assert row["exposed"] == pytest.approx(0.03)
    assert row["hidden"] == pytest.approx(0.02)
    assert row["overlap"] == pytest.approx(0.4)
    assert row["efficiency"] == pytest.approx(0.1 / 0.13)
    assert row["samples_per_second"] == pytest.approx(4 * 4 / 0.13)
    assert row["ratio"]["gloo"]["low"] == pytest.approx(0.21 / 0.13 + (0.27 - 0.21) / 0.13 / 4)
    assert row["wrong"] == 0
    gloo = record["contenders"]["gloo"]
    assert gloo["hidden"] == 0
    assert gloo["wrong"] == 3
    assert record["contenders"]["plain"]["ratio"] == {}
    assert record["limit"] is None


def test_spread_is_of_the_samples_in_their_order() -> None:
    found = times([3.0, 1.0, 2.0])
    assert found == {"median": 2.0, "min": 1.0, "p90": 3.0, "samples": [3.0, 1.0, 2.0]}
    assert times([float(n) for n in range(10, 0, -1)])["p90"] == 9.0


def test_ratio_is_above_one_where_ours_is_faster() -> None:
    theirs, ours = [2.0, 4.0, 3.0], [1.0, 1.0, 2.0]
    found = ratio(theirs, ours)
    assert found["value"] == statistics.median(theirs) / statistics.median(ours) == 3.0
    assert found["low"] == pytest.approx(1.75)
    assert found["high"] == pytest.approx(3.0)
    assert ratio([2.0], [4.0]) == {"value": 0.5, "low": 0.5, "high": 0.5}


def test_what_is_exposed_is_not_hidden() -> None:
    assert hidden(0.5, 0.2) == pytest.approx(0.3)
    assert hidden(0.2, 0.5) == 0.0


@pytest.mark.parametrize(("hosts", "share"), [(1, 0.0), (2, 1.0), (4, 1.5), (8, 1.75)])
def test_least_communication_is_that_of_a_ring(hosts: int, share: float) -> None:
    assert least_communication(1_000_000, hosts, 8e6) == pytest.approx(share)


def test_least_step_knows_what_cannot_be_sent_yet() -> None:
    ready = [(0.2, 30), (0.6, 60), (1.0, 10)]
    assert least_step(1.0, 0.1, None) == 1.0
    assert least_step(1.0, 5.0, None) == 5.0
    assert least_step(1.0, 0.1, ready) == pytest.approx(1.01)  # the last gradient
    assert least_step(1.0, 2.0, ready) == pytest.approx(2.2)  # all of them, once the first is there
    assert least_step(1.0, 0.9, ready) == pytest.approx(1.23)  # the last two
    assert least_step(1.5, 0.1, ready) == 1.5


def test_the_limit_is_known_between_hosts_at_a_rate() -> None:
    limit = summarise(start(), TURNS, END, 1e8)["limit"]
    assert limit["communication"] == pytest.approx(0.12)
    assert limit["step"] == pytest.approx(0.17)
    assert summarise(start(hosts=[0] * 4), TURNS, END, 1e8)["limit"] is None


def test_the_limit_beside_reducers() -> None:
    end = {**END, "reducers": {"r1:1": True, "r2:1": True}}
    limit = summarise(start(), TURNS, end, 1e8)["limit"]
    assert limit["communication"] == pytest.approx(0.12)
    assert limit["communication_beside_reducers"] == pytest.approx(0.08 * 1.2)
    assert limit["step_beside_reducers"] == pytest.approx(0.05 + 0.08 * 1.2)


def test_costs_of_steps() -> None:
    assert cost(3600, 4, 30.0) == 120
    assert cost(1800, 4, 30.0, 2, 1.0) == 61
    end = {**END, "reducers": {"r1:1": True, "r2:1": True}}
    options = {**start()["options"], "worker_price": 36.0, "reducer_price": 18.0}
    rows = summarise(start(options=options), TURNS, end, None)["contenders"]
    assert rows["gloo"]["cost_per_1000_steps"] == pytest.approx(4 * 0.24 * 10)
    assert rows["slipstream"]["cost_per_1000_steps"] == pytest.approx((4 * 36 + 2 * 18) / 3.6 * 0.13)
    assert rows["slipstream"]["relative_cost"] == pytest.approx({"gloo": 1.25 * 0.13 / 0.24})
    assert "cost_per_1000_steps" not in summarise(start(), TURNS, end, None)["contenders"]["gloo"]


def test_table_shows_costs_and_reducers_that_were_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    options = {**start()["options"], "worker_price": 36.0, "reducer_price": 18.0}
    end = {**END, "reducers": {"r1:1": True, "r2:1": False}}
    text = io.StringIO()
    with showing(text) as show:
        show(report(summarise(start(options=options), TURNS, end, 1e8)))
    for words in ("6.5", "67.7 % of gloo's", "2 reducers, used by slipstream", "NOT USED AT THE END: r2:1."):
        assert words in text.getvalue()


def test_table_shows_rows_and_what_is_missing_and_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    text = io.StringIO()
    with showing(text) as show:
        show(report(summarise(start(), TURNS, END, 1e8)))
    lines = text.getvalue().splitlines()
    ours = next(line for line in lines if line.startswith("slipstream"))
    assert "130.0 ms" in ours
    assert "1.85x [1.73-1.96]" in ours
    for words in ("Missing: nccl: no CUDA GPU.", "WRONG GRADIENTS: gloo.", "100mbit", "step 170.0 ms"):
        assert words in text.getvalue()


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_line_is_wider_than_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    options = {**start()["options"], "worker_price": 36.0, "reducer_price": 18.0}
    end = {**END, "reducers": {"r1:1": True}}
    text = io.StringIO()
    with showing(text) as show:
        show(report(summarise(start(options=options), TURNS, end, 1e8)))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    head = next(line for line in lines if line.startswith("contender"))
    for words in ("step", "exposed", "cost/1000 steps", "vs gloo", "wrong"):
        assert words in head  # whole: no cell was folded
    assert ("p90" in head) == (width == 160)
    assert sum("p90" in line for line in lines) == 1  # in a further table, if not in the first


@pytest.mark.parametrize(("suffix", "head"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_plot_is_a_picture(tmp_path: Path, suffix: str, head: bytes) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"step.{suffix}"
    draw(summarise(start(), TURNS, END, 1e8), path)
    assert path.read_bytes().startswith(head)


def test_a_page_shows_a_record() -> None:
    text = page.render([summarise(start(), TURNS, END, 5e8)])
    assert text.startswith("tiny: 250,000 parameters")
    assert "\n\n2026-01-02: some, 2 cores, 4 GiB, Linux 6, load before the run 0.0; torch 2.\n\n" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| slipstream ")]
    assert "| 130.0 ms |" in row
    assert "Limit at 500mbit/s a host" in text
    assert "WRONG GRADIENTS: gloo" in text
