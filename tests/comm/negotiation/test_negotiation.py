"""Operations that have names, on real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("negotiation_rank.py")
HANDLERS = Path(__file__).with_name("handlers_rank.py")
NOW = {"NOW": "1"}  # blocking sums by `Negotiator.run_now`


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_each_rank_and_thread_has_an_order_of_its_own(n: int) -> None:
    ranks.run(SCRIPT, n, args=["orders", "20"], timeout=120)


@pytest.mark.slow
def test_a_thousand_orders() -> None:
    ranks.run(SCRIPT, 4, args=["orders", "334"], timeout=600)


@pytest.mark.parametrize("n", [2, 5])
def test_schedules_with_joins_and_names_that_are_new_late_or_lacking(n: int) -> None:
    ranks.run(SCRIPT, n, args=["schedules", "12"], timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("n", range(2, 9))
def test_a_thousand_schedules(n: int) -> None:
    """150 on each number of ranks: more than 1,000."""
    ranks.run(SCRIPT, n, args=["schedules", "150"], timeout=900)


@pytest.mark.parametrize("n", [2, 4])
def test_equal_steps_need_no_rounds_until_something_differs(n: int) -> None:
    ranks.run(SCRIPT, n, args=["locks"], timeout=200)


def test_a_timeline_says_which_rank_left_a_locked_order_and_why(tmp_path: Path) -> None:
    ranks.run(
        SCRIPT, 3, args=["leaves"], env={"SLIPSTREAM_TIMELINE": str(tmp_path / "{rank}.json")}, timeout=60
    )
    for rank in range(3):
        events = json.loads((tmp_path / f"{rank}.json").read_text())
        told = [one["args"] for one in events if one.get("name") == "unlocked"]
        assert told[0] == {"rank": 1, "reason": "called all_reduce 'new', which is not in the cycle"}
        assert any(one.get("name") == "locked" for one in events)


@pytest.mark.parametrize(("n", "env"), [(2, NOW), (3, {}), (3, NOW)])
def test_ranks_that_deviate_from_a_locked_order_lose_nothing(n: int, env: dict[str, str]) -> None:
    ranks.run(SCRIPT, n, args=["deviates", "20"], env=env, timeout=200)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_a_thousand_steps_with_deviations(n: int) -> None:
    ranks.run(SCRIPT, n, args=["deviates", "250"], timeout=900)


@pytest.mark.parametrize("env", [{}, NOW])
@pytest.mark.parametrize("n", [2, 3])
def test_a_rank_that_dies_in_a_locked_order_is_named(n: int, env: dict[str, str]) -> None:
    ranks.run(SCRIPT, n, args=["dies"], env=env, timeout=60)


@pytest.mark.parametrize("idle", ["0", "1"])
def test_a_rank_that_does_not_go_on_in_a_locked_order_is_named_within_the_limit(idle: str) -> None:
    ranks.run(SCRIPT, 3, args=["stalls", idle], env={"SLIPSTREAM_TIMEOUT": "4"}, timeout=60)


@pytest.mark.parametrize("env", [{}, NOW])
def test_a_name_that_is_under_way_is_not_taken_by_another_thread(env: dict[str, str]) -> None:
    ranks.run(HANDLERS, 2, args=["twice"], env=env, timeout=60)


@pytest.mark.parametrize("env", [{}, NOW])
@pytest.mark.parametrize("n", [2, 3])
def test_a_call_of_a_locked_order_may_be_broken_off(n: int, env: dict[str, str]) -> None:
    ranks.run(HANDLERS, n, args=["interrupted"], env=env, timeout=60)


@pytest.mark.parametrize("n", [2, 3])
def test_a_void_sum_that_is_broken_off_counts_once(n: int) -> None:
    ranks.run(HANDLERS, n, args=["interrupted_void"], env=NOW, timeout=60)


@pytest.mark.parametrize("n", [2, 3])
def test_a_sum_without_an_input_is_not_called(n: int) -> None:
    ranks.run(HANDLERS, n, args=["no_source"], env=NOW, timeout=60)


@pytest.mark.parametrize("n", [2, 3])
def test_a_sum_that_one_rank_cannot_begin_ends_the_job_on_all(n: int) -> None:
    ranks.run(HANDLERS, n, args=["no_target"], env=NOW, timeout=60)


@pytest.mark.parametrize("n", [2, 3])
def test_a_handler_that_waits_amid_a_call_of_a_locked_order_gets_an_error(n: int) -> None:
    ranks.run(HANDLERS, n, args=["handles"], timeout=60)


def test_a_handler_that_waits_as_its_thread_has_the_lock_gets_an_error() -> None:
    ranks.run(HANDLERS, 2, args=["holds"], timeout=60)


@pytest.mark.parametrize("case", ["differs", "fails", "lacks", "apart"])
@pytest.mark.parametrize("n", [2, 3])
def test_what_differs_fails_alone_and_what_is_missing_is_named(case: str, n: int) -> None:
    ranks.run(SCRIPT, n, args=[case], timeout=60)


def test_ranks_that_wait_for_each_other_s_names_time_out() -> None:
    ranks.run(SCRIPT, 3, args=["never"], env={"SLIPSTREAM_TIMEOUT": "4"}, timeout=60)


@pytest.mark.parametrize("n", [2, 3])
def test_a_rank_that_has_joined_waits_longer_than_operations_may_take(n: int) -> None:
    ranks.run(SCRIPT, n, args=["joins"], env={"SLIPSTREAM_TIMEOUT": "4"}, timeout=60)
