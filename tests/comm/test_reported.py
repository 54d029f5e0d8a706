"""What errors call the operations and groups of the ranks, and whom they blame."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import numpy as np
import pytest

import slipstream
from comm import ranks, sessions

HOST = socket.gethostname()
RANK = Path(__file__).with_name("reported_rank.py")


def errors(case: str, transport: str = "shm") -> list[list[str]]:
    return [
        json.loads(ranks.marked("errors: ", text))
        for text in ranks.run(RANK, 2, transport=transport, args=[case])
    ]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_groups_whose_members_order_them_unlike_are_a_mismatch(transport: str) -> None:
    for (error,) in errors("order", transport):
        assert error.startswith("Mismatch: ")
        assert f"rank 0 (host {HOST}) called all_reduce(float64, 2 elements, op=sum)" in error
        assert f"rank 1 (host {HOST}) called all_reduce[ranks=1,0](float64, 2 elements, op=sum)" in error


def test_a_barrier_of_such_groups_is_one_too() -> None:
    for (error,) in errors("order of a barrier"):
        assert f"rank 0 (host {HOST}) called barrier()" in error
        assert f"rank 1 (host {HOST}) called barrier[ranks=1,0]()" in error


def test_groups_of_the_same_ranks_in_several_orders_work() -> None:
    assert errors("order twice") == [[], []]


def test_each_side_of_a_message_goes_by_its_name() -> None:
    for error, *_ in errors("message"):
        assert f"rank 0 (host {HOST}) called send(to rank 1, float64, 3 elements)" in error
        assert f"rank 1 (host {HOST}) called recv(from rank 0, float64, 4 elements)" in error
        assert "; the receiver must take as many elements of the same dtype as are sent" in error


def test_a_barrier_and_one_element_go_by_their_names() -> None:
    for error, _ in errors("barrier"):
        assert f"rank 0 (host {HOST}) called barrier()" in error
        assert f"rank 1 (host {HOST}) called all_reduce(float64, 1 element, op=sum)" in error


def test_later_operations_say_that_the_job_has_failed_before() -> None:
    for first, later in errors("barrier"):
        cause = re.fullmatch(r"Mismatch: (.*) \(reported_rank\.py:\d+\)", first)
        assert cause, first
        assert later == f"Mismatch: the job has failed before: {cause[1]}"  # and names no line


def test_texts_are_whole_whatever_is_in_them() -> None:
    with sessions.ranks(1) as (rank,):
        rank.session.abort("before\0behind, \u20ac")
        with pytest.raises(slipstream.Aborted, match="before\0behind, \u20ac"):
            rank.all_reduce(np.ones(1, dtype=np.float32)).wait()
