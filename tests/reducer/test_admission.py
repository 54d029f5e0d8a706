"""Jobs whose workers do not come: what they hold of a reducer, and how long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from reducer import service
from reducer.service import SECRET, wait_for
from slipstream.base.errors import SlipstreamError
from slipstream.comm.reducers.client import Request, register
from slipstream.reducer.admission import Bounds, admit
from slipstream.reducer.server import Limits, Reducer

GIB = 1 << 30
BOUNDS = Bounds(jobs=4, memory=8 * GIB, join=10.0)
VICTIM = "127.0.0.100"


@dataclass(eq=False)
class Held:
    host: str
    memory: int = GIB
    begun: float = 0.0
    joined: bool = False


@pytest.fixture
def reducer() -> Iterator[Reducer]:
    """One in this process with 8 places."""
    one = Reducer("127.0.0.1", 0, SECRET, Limits(jobs=8, memory=8 * GIB, join=0.3))
    yield one
    one.close()


def ask(reducer: Reducer, host: str, workers: int = 2) -> str:
    """Registers a job as ``host`` and never joins it. The refusal, "" if there was none."""
    with service.calling_from(host):
        try:
            register(*reducer.address, SECRET, Request("job", workers, 2), service.LIMIT)
        except SlipstreamError as error:
            return str(error)
    return ""


# ---- the rules


def test_one_host_gets_half_of_the_places_with_absent_workers() -> None:
    held = [Held("a"), Held("a")]
    assert "the workers of 2 other jobs of a have not come" in admit(held, "a", 2, GIB, BOUNDS, 1.0).refusal
    assert not admit(held, "b", 2, GIB, BOUNDS, 1.0).refusal
    assert not admit([Held("a", joined=True), *held[:1]], "a", 2, GIB, BOUNDS, 1.0).refusal


def test_one_host_gets_half_of_the_memory_with_absent_workers() -> None:
    assert not admit([], "a", 2, 7 * GIB, BOUNDS, 1.0).refusal
    assert "of 1 other jobs of a" in admit([Held("a", 3 * GIB)], "a", 2, 2 * GIB, BOUNDS, 1.0).refusal
    assert not admit([Held("a", 3 * GIB, joined=True)], "a", 2, 2 * GIB, BOUNDS, 1.0).refusal


def test_a_host_whose_workers_stay_away_gives_up_its_oldest_place_to_itself() -> None:
    held = [Held("a", begun=1.0), Held("a", begun=0.0)]
    decision = admit(held, "a", 2, GIB, BOUNDS, 10.5)
    assert (decision.refusal, decision.going, decision.missing) == ("", [held[1]], [])


def test_who_has_waited_longest_for_its_workers_makes_room() -> None:
    held = [Held("a", begun=3.0), Held("b", begun=1.0), Held("c", joined=True), Held("d", begun=2.0)]
    early = admit(held, "e", 2, GIB, BOUNDS, 10.5)
    assert "4 jobs already" in early.refusal
    assert early.missing == [held[0], held[1], held[3]]
    late = admit(held, "e", 2, 6 * GIB, BOUNDS, 12.5)
    assert (late.refusal, late.going) == ("", [held[1], held[3]])


def test_nobody_loses_a_place_in_vain() -> None:
    held = [Held("a"), Held("b", 7 * GIB, joined=True)]
    decision = admit(held, "c", 2, 2 * GIB, BOUNDS, 100.0)
    assert "1024 MiB are left" in decision.refusal
    assert decision.going == []


# ---- the service


def test_one_host_that_registers_for_ever_leaves_places(reducer: Reducer) -> None:
    refusals = [ask(reducer, "127.0.0.1") for _ in range(30)]
    assert any(refusals)
    assert [ask(reducer, VICTIM) for _ in range(3)] == [""] * 3


def test_hosts_that_register_for_ever_lose_their_places_and_wait(reducer: Reducer) -> None:
    hosts = [f"127.0.0.{i}" for i in range(1, 9)]
    assert [ask(reducer, host) for host in hosts] == [""] * 8
    assert "8 jobs already" in ask(reducer, VICTIM)
    wait_for(lambda: not ask(reducer, VICTIM), "a place")
    wait_for(lambda: any("no room" in ask(reducer, host) for host in hosts), "a host that has to wait")
    assert "has to wait" not in ask(reducer, VICTIM)


def test_one_large_job_without_workers_does_not_keep_the_memory(reducer: Reducer) -> None:
    assert not ask(reducer, "127.0.0.1", workers=98)
    assert "(--memory)" in ask(reducer, VICTIM)
    wait_for(lambda: not ask(reducer, VICTIM), "memory")
    wait_for(lambda: len(reducer.status()["jobs"]) == 1, "the end of the large job")
    assert "its workers did not come" in ask(reducer, "127.0.0.1", workers=98)
