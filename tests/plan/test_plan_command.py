"""``slipstream plan reducers``, as it is typed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from slipstream.cli.main import main

GIVEN = {
    "--workers": "8",
    "--worker-rate": "100gbit",
    "--reducer-rate": "32gbit",
    "--model-bytes": "1.3GiB",
    "--compute-time": "0.3s",
}
PRICES = ("--worker-price", "30", "--reducer-price", "0.7")


def call(*more: str, **changed: str) -> Result:
    options = GIVEN | {f"--{name.replace('_', '-')}": text for name, text in changed.items()}
    words = [word for option in options.items() for word in option]
    return CliRunner().invoke(main, ["plan", "reducers", *words, *more])


def rows(result: Result) -> list[list[str]]:
    """The cells of the table, its head first."""
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_table() -> None:
    head, *lines = rows(call(*PRICES, "--reducers", "3"))
    assert head[:5] == ["reducers", "communication", "step", "steps/s", "speed"]
    assert [line[0] for line in lines] == ["0", "1", "2", "3", "4", "8", "16", "25"]
    # M/B = 8 * 1.3 * 2^30 / 100e9 s = 111.67 ms, the ring 1.75 of that
    assert lines[0][1:5] == ["195.42 ms", "495.42 ms", "2.02", "1.00x"]
    assert lines[-1][1:5] == ["111.67 ms", "411.67 ms", "2.43", "1.20x"]
    assert lines[-1][5:8] == ["257.50", "29.45", "89.2 %"]
    assert lines[-1][-1] == "fastest, cheapest"
    assert len({len(line) for line in call().output.splitlines() if line.startswith("|")}) == 1


def test_the_cheapest_may_be_fewer_than_are_of_use() -> None:
    _, *lines = rows(call(*PRICES, "--overlap", "0.7"))
    assert {line[0]: line[-1] for line in lines if line[-1]} == {
        "12": "cheapest",
        "25": "fastest",
    }


def test_without_prices_there_are_no_costs() -> None:
    head, *lines = rows(call("--steps", "1000"))
    assert not any("cost" in name for name in head)
    assert head[-2] == "hours"
    assert lines[0][-2] == "0.138"
    assert not any("cheapest" in line[-1] for line in lines)


def test_hours_are_those_without_reducers() -> None:
    head, *lines = rows(call(*PRICES, "--hours", "100"))
    assert head[-3:-1] == ["hours", "total cost"]
    assert lines[0][-3:-1] == ["100.00", "24,000.00"]
    assert lines[-1][-3] == "83.09"  # 100 / 1.2034


def test_json() -> None:
    result = call(*PRICES, "--json", "--steps", "3600")
    found = json.loads(result.output)
    assert found["cluster"] == {
        "workers": 8,
        "worker_rate": 10**11,
        "reducer_rate": 32 * 10**9,
        "worker_price": 30,
        "reducer_price": 0.7,
        "ranks_per_host": 1,
    }
    assert found["training"] == {"nbytes": 1395864371, "compute": 0.3, "overlap": 0, "steps": 3600}
    assert (found["rule"], found["recommended"], found["cheapest"]) == (25, 25, 25)
    last = found["outcomes"][-1]
    assert last["reducers"] == 25
    assert last["communication_seconds"] == pytest.approx(8 * 1395864371 / 1e11)
    assert last["cost_per_step"] == pytest.approx(last["cost_per_hour"] * last["step_seconds"] / 3600)
    assert last["total_cost"] == pytest.approx(257.5 * last["step_seconds"])


def test_ranks_of_a_worker_share_its_link() -> None:
    alone, shared = call(), call("--ranks-per-host", "4")
    assert "each with" not in alone.output
    assert "8 workers, each with 4 ranks, of 100gbit" in shared.output
    assert alone.output.splitlines()[1:] == shared.output.splitlines()[1:]
    assert call("--ranks-per-host", "0").exit_code == 2


def test_it_says_what_reducers_cannot_do() -> None:
    assert "no faster" in call(workers="2").output
    limited = call(workers="64").output
    assert "takes 200 reducers" in limited
    assert "at most 32" in limited
    assert "no faster" not in limited


@pytest.mark.parametrize(
    ("changed", "more", "message"),
    [
        ({"workers": "1"}, (), "'--workers': 1 is not in the range"),
        ({"worker_rate": "fast"}, (), "'--worker-rate': 'fast' is not a rate"),
        ({"reducer_rate": "0gbit"}, (), "'--reducer-rate'"),
        ({"model_bytes": "big"}, (), "'--model-bytes': 'big' is not a size"),
        ({"model_bytes": "0"}, (), "at least one byte"),
        ({"compute_time": "soon"}, (), "'--compute-time': 'soon' is not a time"),
        ({}, ("--overlap", "2"), "'--overlap'"),
        ({}, ("--overlap", "nan"), "overlap"),
        ({}, ("--worker-price", "-1"), "price"),
        ({}, ("--reducer-price", "nan"), "price"),
        ({}, ("--reducers", "33"), "'--reducers'"),
        ({}, ("--steps", "10", "--hours", "1"), "not both"),
        ({}, ("--hours", "inf"), "steps"),
    ],
)
def test_bad_input(changed: dict[str, str], more: tuple[str, ...], message: str) -> None:
    result = call(*more, **changed)
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert "Traceback" not in result.output
