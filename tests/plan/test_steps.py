"""Steps, their encoding, and the registry."""

from __future__ import annotations

import numpy as np
import pytest

from plan.reference import ALGORITHMS, plans_of
from slipstream.plan import registry
from slipstream.plan.order import prove
from slipstream.plan.registry import algorithms, build, register
from slipstream.plan.steps import Draft, Kind, Plan, Space, Step


def test_codes_are_those_of_the_native_executor() -> None:
    assert [kind.value for kind in Kind] == [0, 1, 2, 3, 4, 5]
    assert [kind.name for kind in Kind] == ["SEND", "RECV", "RECV_REDUCE", "COPY", "REDUCE", "FINISH"]
    assert [(space.name, space.value) for space in Space] == [("IN", 0), ("OUT", 1), ("TMP", 2)]
    assert Step._fields == ("kind", "peer", "block", "count", "after", "src", "dst")


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_encoding_can_be_read_back(collective: str, algorithm: str, size: int) -> None:
    for plan in plans_of(collective, algorithm, size):
        rows, waits = plan.encode()
        assert rows.dtype == waits.dtype == np.int32
        assert rows.shape == (len(plan.steps), 7)
        assert rows.flags.c_contiguous
        assert waits.ndim == 1
        left = waits.tolist()
        steps = []
        for kind, peer, block, count, src, dst, waiting in rows.tolist():
            after, left = tuple(left[:waiting]), left[waiting:]
            steps.append(Step(Kind(kind), peer, block, count, after, Space(src), Space(dst)))
        assert not left
        assert tuple(steps) == plan.steps


def test_an_empty_plan_can_be_encoded() -> None:
    rows, waits = Draft("all_reduce", "nothing", 0, 1, 1).plan().encode()
    assert rows.shape == (0, 7)
    assert waits.shape == (0,)


@pytest.mark.parametrize(
    "step",
    [
        Step(Kind.SEND, 2, 0, 1, (), Space.IN, Space.IN),
        Step(Kind.SEND, 0, 0, 1, (), Space.IN, Space.IN),
        Step(Kind.RECV, -1, 0, 1, (), Space.OUT, Space.OUT),
        Step(Kind.COPY, 1, 0, 1, (), Space.IN, Space.OUT),
        Step(Kind.SEND, 1, 3, 1, (), Space.IN, Space.IN),
        Step(Kind.SEND, 1, 2, 2, (), Space.IN, Space.IN),
        Step(Kind.SEND, 1, 0, 0, (), Space.IN, Space.IN),
        Step(Kind.SEND, 1, 0, 1, (0,), Space.IN, Space.IN),
        Step(Kind.SEND, 1, 0, 1, (-1,), Space.IN, Space.IN),
    ],
)
def test_impossible_steps_are_refused(step: Step) -> None:
    with pytest.raises(ValueError, match="step 0"):
        Plan("all_reduce", "wrong", 0, 2, 3, (step,))


def test_a_draft_numbers_its_steps_and_sorts_waits() -> None:
    draft = Draft("reduce", "own", 1, 3, 2)
    first = draft.copy(0, Space.IN, Space.TMP, count=2)
    second = draft.reduce(1, Space.IN, Space.TMP, after=(first,))
    third = draft.send(2, 0, Space.TMP, count=2, after=(second, first, second))
    assert (first, second, third) == (0, 1, 2)
    assert draft.plan().steps == (
        Step(Kind.COPY, -1, 0, 2, (), Space.IN, Space.TMP),
        Step(Kind.REDUCE, -1, 1, 1, (0,), Space.IN, Space.TMP),
        Step(Kind.SEND, 2, 0, 2, (0, 1), Space.TMP, Space.TMP),
    )


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
def test_one_rank_copies(collective: str, algorithm: str) -> None:
    plan = build(collective, algorithm, 0, 1)
    kinds = [step.kind for step in plan.steps]
    reduces = collective in ("all_reduce", "reduce", "reduce_scatter")
    assert kinds == ([Kind.COPY, Kind.FINISH] if reduces else [Kind.COPY])
    assert (plan.collective, plan.algorithm) == (collective, algorithm)


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
def test_plans_say_what_they_are(collective: str, algorithm: str) -> None:
    for rank, plan in enumerate(plans_of(collective, algorithm, 6)):
        assert (plan.collective, plan.algorithm, plan.rank, plan.size) == (collective, algorithm, rank, 6)


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="no collective is called"):
        build("all_reduced", "ring", 0, 2)
    with pytest.raises(ValueError, match="it has: direct"):
        build("all_reduce", "rings", 0, 2)
    for rank, size, root in [(2, 2, 0), (-1, 2, 0), (0, 2, 2), (0, 0, 0)]:
        with pytest.raises(ValueError, match="not in a group"):
            build("broadcast", "binomial", rank, size, root)
    with pytest.raises(ValueError, match="names 3 ranks of 2"):
        build("all_reduce", "ring", 0, 2, hosts=[0, 0, 1])


def test_a_plan_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._BUILDERS, "all_gather", dict(registry._BUILDERS["all_gather"]))

    def backwards(rank: int, size: int, root: int, hosts: object) -> Plan:
        draft = Draft("all_gather", "backwards", rank, size, size)
        draft.copy(rank, Space.IN, Space.OUT)
        for peer in reversed(range(size)):
            if peer != rank:
                draft.send(peer, rank, Space.IN)
                draft.recv(peer, peer, Space.OUT)
        return draft.plan()

    register("all_gather", "backwards", backwards)
    assert "backwards" in algorithms("all_gather")
    for in_place in (False, True):
        prove(plans_of("all_gather", "backwards", 5), in_place)
    with pytest.raises(ValueError, match="already"):
        register("all_gather", "backwards", backwards)
    with pytest.raises(ValueError, match="no collective"):
        register("all_gathered", "backwards", backwards)
