"""Operations that have names, on real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("negotiation_rank.py")


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_each_rank_and_thread_has_an_order_of_its_own(n: int) -> None:
    ranks.run(SCRIPT, n, args=["orders", "20"], timeout=120)


@pytest.mark.slow
def test_a_thousand_orders() -> None:
    ranks.run(SCRIPT, 4, args=["orders", "334"], timeout=600)


@pytest.mark.parametrize("case", ["differs", "fails", "lacks", "apart"])
@pytest.mark.parametrize("n", [2, 3])
def test_what_differs_fails_alone_and_what_is_missing_is_named(case: str, n: int) -> None:
    ranks.run(SCRIPT, n, args=[case], timeout=60)


def test_ranks_that_wait_for_each_other_s_names_time_out() -> None:
    ranks.run(SCRIPT, 3, args=["never"], env={"SLIPSTREAM_TIMEOUT": "2"}, timeout=60)
