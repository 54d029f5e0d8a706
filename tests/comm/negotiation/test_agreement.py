"""What follows from announcements, for random schedules on 2 to 8 ranks."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.comm.negotiation import agreement
from slipstream.comm.negotiation.agreement import Agreement, Decision, Request


def simulate(calls: list[list[Request]], rng: random.Random) -> list[list[Decision]]:
    """Every rank calls its list in order, at random moments between rounds; all decisions of each rank, in order."""
    ranks = range(len(calls))
    copies = [Agreement(ranks) for _ in ranks]
    left = [deque(one) for one in calls]
    decisions: list[list[Decision]] = [[] for _ in ranks]
    while any(left):
        new = [[queue.popleft() for _ in range(rng.randint(0, min(len(queue), 4)))] for queue in left]
        messages = [copy.encode(mine) for copy, mine in zip(copies, new, strict=True)]
        for copy, found in zip(copies, decisions, strict=True):
            found.extend(copy.decide(messages))
    assert all(copy.missing() == copies[0].missing() for copy in copies)
    return decisions


@pytest.mark.parametrize("schedules", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_all_ranks_decide_alike_and_lose_nothing_whatever_the_order(schedules: int) -> None:
    rng = random.Random(1)
    for _ in range(schedules):
        names = [f"tensor {i}" for i in range(rng.randint(1, 12))]
        calls = []
        for _ in range(rng.randint(2, 8)):
            order = [Request("allreduce", name, "float32 (3,)") for name in names]
            rng.shuffle(order)
            calls.append(order)
        decisions = simulate(calls, rng)
        assert all(one == decisions[0] for one in decisions)
        assert sorted(decision.key[1] for decision in decisions[0]) == sorted(names)
        assert not any(decision.mismatch for decision in decisions[0])


@given(st.integers(2, 8), st.data())
@settings(max_examples=200, deadline=None)
def test_what_a_rank_lacks_waits_and_what_differs_fails_alone(size: int, data: st.DataObject) -> None:
    names = [f"tensor {i}" for i in range(6)]
    has = {name: data.draw(st.sets(st.integers(0, size - 1), min_size=1), label=name) for name in names}
    differs = data.draw(st.sets(st.sampled_from(names)), label="differs")
    calls = [
        [
            Request("allreduce", name, f"float32 ({rank == 0 and name in differs},)")
            for name in names
            if rank in has[name]
        ]
        for rank in range(size)
    ]
    decisions = simulate(calls, random.Random(data.draw(st.integers(0, 1000))))
    assert all(one == decisions[0] for one in decisions)
    whole = {name for name in names if len(has[name]) == size}
    assert {decision.key[1] for decision in decisions[0]} == whole
    assert {decision.key[1] for decision in decisions[0] if decision.mismatch} == whole & differs


def test_a_mismatch_names_all_sides() -> None:
    agreement = Agreement([4, 5, 7])
    facts = ["float32 (2,)", "float32 (3,)", "float32 (2,)"]
    (decision,) = agreement.decide([agreement.encode([Request("allreduce", "loss", text)]) for text in facts])
    assert decision.mismatch == (
        "Mismatched allreduce arguments: allreduce 'loss' was called by ranks 4, 7 with float32 (2,); "
        "by rank 5 with float32 (3,). "
        "All ranks must call it alike"
    )


def test_who_is_missing_is_known() -> None:
    agreement = Agreement([4, 5, 7])
    requests = [[Request("allreduce", "a", "")], [Request("allreduce", "b", "")], []]
    assert agreement.decide([agreement.encode(one) for one in requests]) == []
    assert agreement.missing() == {("allreduce", "a"): [5, 7], ("allreduce", "b"): [4, 7]}
    assert agreement.lacking(("allreduce", "a")) == [5, 7]
    assert agreement.lacking(("allreduce", "c")) == []


def test_requests_that_are_known_travel_as_numbers() -> None:
    agreement = Agreement([0])
    request = Request("allreduce", "a long name", "float32 (1000, 1000)")
    first = b'[0,0,"",[["allreduce","a long name","float32 (1000, 1000)","",-1,null,"",false]]]'
    for wanted in (first, b'[0,0,"",[0]]', b'[0,0,"",[0]]'):
        message = agreement.encode([request])
        assert message == wanted
        assert [decision.key for decision in agreement.decide([message])] == [request.key]


def test_new_names_without_end_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_MOST_KNOWN", 10)
    copies = [Agreement([0, 1]), Agreement([0, 1])]
    for number in range(100):
        requests = [
            Request("allreduce", f"step {one}", "") for one in (number, 0 if number % 7 == 0 else -number)
        ]
        requests = list(dict.fromkeys(requests))
        messages = [copy.encode(requests) for copy in copies]
        decisions = [copy.decide(messages) for copy in copies]
        assert decisions[0] == decisions[1]
        assert [decision.key for decision in decisions[0]] == [request.key for request in requests]
        assert len(copies[0]._numbered) <= 10
