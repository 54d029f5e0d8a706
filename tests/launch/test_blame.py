"""Who is at fault, by the reports of all ranks, in whatever order they come."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.fake_agents import FakeJob
from slipstream.base.excepthook import CONSEQUENCE, MIXED, OWN
from slipstream.launch.causes import Causes, Failure, explained
from slipstream.launch.first_cause import FirstCause

PEER_LOST, ABORTED = 1, 5
Report = tuple[int, bytes]  # of a rank


def session(code: int, rank: int, told_by: int = -1, text: str = "") -> bytes:
    """A rank's session has failed because of ``rank``."""
    silent = f"rank {rank} (host h) has sent nothing for 10 s (SLIPSTREAM_HEARTBEAT), and answers no ping"
    told = {"code": code, "rank": rank, "told_by": told_by, "text": text or silent}
    return json.dumps({"session": told}).encode() + b"\n"


def exception(grade: int, text: str) -> bytes:
    return json.dumps({"grade": grade, "text": text}).encode() + b"\n"


def causes_of(
    hosts: dict[int, str], reports: Sequence[Report], ended: Sequence[int] | None = None
) -> Failure:
    """The cause, if these ranks (all, else) have ended with code 5."""
    causes = Causes(hosts)
    for rank, data in reports:
        causes.report(rank, data)
        if ended is None or rank in ended:
            causes.failed(rank, 5, "exited with code 5", [])
    first = causes.first()
    assert first is not None
    return first


def placed(hosts: int, slots: int) -> dict[int, str]:
    return {rank: f"h{rank // slots}" for rank in range(hosts * slots)}


def spread(draw: st.DrawFn, ranks: Sequence[int], found: int, lost: int) -> list[Report]:
    """``found`` of the ranks have lost ``lost`` by themselves, and have told the rest, who told each other."""
    order = draw(st.permutations(ranks))
    reports = [(rank, session(PEER_LOST, lost)) for rank in order[:found]]
    for at, rank in enumerate(order[found:], found):
        reports.append((rank, session(PEER_LOST, lost, draw(st.sampled_from(order[:at])))))
    return reports


# ---- a host is cut off


@st.composite
def cut_off_hosts(draw: st.DrawFn) -> tuple[dict[int, str], str, list[Report]]:
    slots = draw(st.integers(1, 3))
    hosts = placed(draw(st.integers(3, 5)), slots)
    host = draw(st.sampled_from(sorted(set(hosts.values()))))
    inside = [rank for rank in hosts if hosts[rank] == host]
    outside = [rank for rank in hosts if hosts[rank] != host]
    theirs = spread(draw, outside, draw(st.integers(1, 2)), draw(st.sampled_from(inside)))
    own = spread(draw, inside, draw(st.integers(1, slots)), draw(st.sampled_from(outside)))
    return hosts, host, draw(st.permutations(theirs + own))


@given(cut_off_hosts())
def test_the_host_that_all_others_have_lost_is_named(case: tuple[dict[int, str], str, list[Report]]) -> None:
    hosts, host, reports = case
    first = causes_of(hosts, reports)
    assert hosts[first.rank] != host
    assert first.lost is not None
    assert hosts[first.lost] == host
    outside = sum(one != host for one in hosts.values())
    assert first.judgement.startswith(f"host {host} was cut off from the others")
    count = f"the reports of {outside} of {len(hosts)} ranks name rank {first.lost} there as lost"
    assert first.judgement.endswith(count)


def deaf(rank: int) -> bytes:
    """The session of a rank has failed because it heard from nobody."""
    text = f"rank {rank} (host h) has heard from no other host for 5 s (SLIPSTREAM_HEARTBEAT + 2 s), and rank 0 (host "
    more = (
        "h0) is not the only one that answers no ping: the network of its own host is likely to be at fault; the last "
        "attempt to reach it: rank 0 at h0:1 does not answer"
    )
    return session(PEER_LOST, rank, text=text + more)


@st.composite
def deaf_hosts(draw: st.DrawFn) -> tuple[dict[int, str], str, list[Report]]:
    """One host receives nothing, and what its ranks say reaches the others."""
    slots = draw(st.integers(1, 3))
    hosts = placed(draw(st.integers(3, 5)), slots)
    host = draw(st.sampled_from(sorted(set(hosts.values()))))
    inside = draw(st.permutations([rank for rank in hosts if hosts[rank] == host]))
    found = draw(st.integers(1, slots))
    reports = [(rank, deaf(rank)) for rank in inside[:found]]
    text = json.loads(deaf(inside[0]))["session"]["text"]
    for rank in hosts:
        if rank not in inside[:found]:
            told = session(PEER_LOST, inside[0], draw(st.sampled_from(inside[:found])), text)
            reports.append((rank, told))
    return hosts, host, draw(st.permutations(reports))


@given(deaf_hosts())
def test_a_host_that_receives_nothing_is_named_though_its_word_gets_out(
    case: tuple[dict[int, str], str, list[Report]],
) -> None:
    hosts, host, reports = case
    first = causes_of(hosts, reports)
    assert hosts[first.rank] != host
    assert first.lost is not None
    assert hosts[first.lost] == host
    outside = sum(one != host for one in hosts.values())
    assert first.judgement == (
        f"host {host} heard from no other host: its network is likely to be at fault: the reports of {outside} of "
        f"{len(hosts)} ranks name rank {first.lost} there as lost"
    )


@given(cut_off_hosts(), st.randoms())
def test_a_host_that_is_cut_off_both_ways_may_say_so_itself(
    case: tuple[dict[int, str], str, list[Report]], rng: random.Random
) -> None:
    hosts, host, reports = case
    reports = [(r, deaf(r) if hosts[r] == host and rng.random() < 0.5 else told) for r, told in reports]
    first = causes_of(hosts, reports)
    assert hosts[first.rank] != host
    assert first.judgement.startswith(f"host {host} was cut off from the others")


@given(st.permutations(range(3)))
def test_if_no_host_hears_another_one_the_network_is_at_fault(order: list[int]) -> None:
    first = causes_of(placed(3, 1), [(rank, deaf(rank)) for rank in order])
    said = "hosts h0, h1, h2 heard from no other host: the network between them is at fault"
    assert first.judgement == said


def test_one_that_has_heard_from_nobody_is_named_if_nobody_else_says_anything() -> None:
    first = causes_of(placed(3, 1), [(1, deaf(1))])
    assert (first.rank, first.grade) == (1, CONSEQUENCE)
    assert first.judgement.endswith("its network is likely to be at fault: rank 1 there lost them")


def test_what_one_host_says_of_itself_does_not_hide_that_others_have_lost_each_other() -> None:
    reports = [
        (0, deaf(0)),
        (1, session(PEER_LOST, 2)),
        (2, session(PEER_LOST, 1)),
        (3, session(PEER_LOST, 2)),
    ]
    first = causes_of(placed(4, 1), reports)
    assert first.lost == 2
    assert "h0" not in first.judgement
    assert first.judgement.endswith("the reports of 2 of 4 ranks name rank 2 there as lost")


@given(st.permutations(range(4)))
def test_a_rank_that_accuses_itself_is_not_to_blame_if_another_one_has_lost_a_host(order: list[int]) -> None:
    text = json.loads(deaf(0))["session"]["text"]
    second_hand = session(PEER_LOST, 0, 0, text)
    reports = [(0, deaf(0)), (1, second_hand), (2, second_hand), (3, session(PEER_LOST, 1))]
    first = causes_of(placed(4, 1), [reports[at] for at in order])
    assert (first.rank, first.lost) == (3, 1)


def test_more_reports_are_awaited_if_one_host_says_that_it_heard_from_nobody() -> None:
    causes = Causes(placed(3, 1))
    causes.report(1, deaf(1))
    assert causes.one_sided
    causes.report(0, session(PEER_LOST, 1))
    assert not causes.one_sided


@given(st.permutations(range(3)))
def test_if_each_side_has_lost_another_rank_no_doubt_is_left(order: list[int]) -> None:
    reports = [session(PEER_LOST, 2), session(PEER_LOST, 0), session(PEER_LOST, 0, told_by=1)]
    first = causes_of(placed(3, 1), [(rank, reports[rank]) for rank in order])
    assert first.rank == 1
    assert first.judgement == (
        "host h0 was cut off from the others, or stood still: the reports of 2 of 3 ranks name rank 0 there as lost"
    )


@given(st.permutations(range(4)))
def test_without_reports_of_the_others_it_is_as_the_ranks_there_say(order: list[int]) -> None:
    """All have lost another host than has lost them; no report names a rank of theirs."""
    told = {
        0: session(PEER_LOST, 2),
        1: session(PEER_LOST, 3),
        2: session(PEER_LOST, 3),
        3: session(PEER_LOST, 2),
    }
    hosts = {0: "a", 1: "a", 2: "b", 3: "c"}
    first = causes_of(hosts, [(rank, told[rank]) for rank in order])
    assert (
        first.judgement
        == "ranks on both sides have lost each other: the network between hosts a, b, c is at fault"
    )


# ---- several hosts are


@st.composite
def splits(draw: st.DrawFn) -> tuple[dict[int, str], list[set[str]], list[Report]]:
    """The network falls into two parts, of two hosts at least, and each rank has lost one of the other part."""
    slots = draw(st.integers(1, 2))
    hosts = placed(draw(st.integers(4, 6)), slots)
    names = draw(st.permutations(sorted(set(hosts.values()))))
    border = draw(st.integers(2, len(names) - 2))
    sides = [set(names[:border]), set(names[border:])]
    reports = []
    for side in sides:
        here = draw(st.permutations([rank for rank in hosts if hosts[rank] in side]))
        there = [rank for rank in hosts if hosts[rank] not in side]
        told: list[tuple[int, int]] = []  # a rank, and the one that it has lost
        for rank in here:
            by = draw(st.sampled_from([None, *told]))
            if by is None:
                told.append((rank, draw(st.sampled_from(there))))
                reports.append((rank, session(PEER_LOST, told[-1][1])))
            else:
                told.append((rank, by[1]))
                reports.append((rank, session(PEER_LOST, by[1], told_by=by[0])))
    return hosts, sides, draw(st.permutations(reports))


@given(splits())
def test_no_host_of_a_split_network_is_blamed_alone(
    case: tuple[dict[int, str], list[set[str]], list[Report]],
) -> None:
    hosts, sides, reports = case
    said = causes_of(hosts, reports).judgement
    both = " and hosts ".join(sorted(", ".join(sorted(side)) for side in sides))
    if found := re.match(r"hosts? (.*?) (was|were) cut off from the others", said):
        assert any(set(found[1].split(", ")) <= side for side in sides)
        assert found[2] == "were"
    else:
        fault = re.fullmatch(
            "ranks on both sides have lost each other: the network between hosts (.*) is at fault.*", said
        )
        assert fault is not None
        assert " and hosts " not in said or fault[1] == both


@given(st.permutations(range(4)))
def test_if_each_host_has_lost_a_different_one_the_network_is_at_fault(order: list[int]) -> None:
    told = [session(PEER_LOST, 2), session(PEER_LOST, 3), session(PEER_LOST, 1), session(PEER_LOST, 0)]
    first = causes_of(placed(4, 1), [(rank, told[rank]) for rank in order])
    said = "the network between hosts h0, h1, h2, h3 is at fault"
    assert first.judgement == f"ranks on both sides have lost each other: {said}"


@given(st.permutations(range(5)))
def test_two_hosts_that_are_cut_off_are_named(order: list[int]) -> None:
    told = {
        0: session(PEER_LOST, 3),
        1: session(PEER_LOST, 3, told_by=0),
        2: session(PEER_LOST, 4),
        3: session(PEER_LOST, 0),
        4: session(PEER_LOST, 1),
    }
    first = causes_of(placed(5, 1), [(rank, told[rank]) for rank in order])
    assert first.judgement == (
        "ranks on both sides have lost each other: the network between hosts h0, h1, h2, h3, h4 is at fault"
    )
    told[2] = session(PEER_LOST, 3, told_by=0)
    first = causes_of(placed(5, 1), [(rank, told[rank]) for rank in order])
    assert first.judgement == (
        "hosts h3, h4 were cut off from the others, or stood still: the reports of 3 of 5 ranks name rank 3 there as "
        "lost"
    )


def test_two_hosts_that_hear_nobody_are_at_fault_themselves() -> None:
    reports = [
        (1, deaf(1)),
        (2, deaf(2)),
        (0, session(PEER_LOST, 1, 1, json.loads(deaf(1))["session"]["text"])),
    ]
    first = causes_of(placed(4, 1), reports)
    said = "hosts h1, h2 heard from no other host: their networks are likely to be at fault"
    assert first.judgement == said


# ---- the network between two hosts is cut


@given(st.permutations(range(4)), st.booleans())
def test_both_hosts_are_named_if_the_others_reach_both(order: list[int], both: bool) -> None:
    told = {
        0: session(PEER_LOST, 1),
        1: session(PEER_LOST, 0) if both else session(PEER_LOST, 1, told_by=3),  # it is told that it is lost
        2: session(PEER_LOST, 1, told_by=0),
        3: session(PEER_LOST, 0, told_by=1) if both else session(PEER_LOST, 1, told_by=2),
    }
    first = causes_of(placed(4, 1), [(rank, told[rank]) for rank in order])
    at_fault = "the network between hosts h0, h1 is at fault"
    lives = "rank 1 lives, and others reached it: it stood still for a while, or "
    sides = "ranks on both sides have lost each other: the network between hosts h0, h2 and hosts h1, h3 is at fault, "
    assert first.judgement == (sides + "or only between hosts h0, h1" if both else lives + at_fault)
    assert first.rank in (0, 1) if both else first.rank == 0


@given(st.permutations(range(4)))
def test_of_two_hosts_none_is_blamed(order: list[int]) -> None:
    told = {
        0: session(PEER_LOST, 2),
        1: session(PEER_LOST, 2, told_by=0),
        2: session(PEER_LOST, 0),
        3: session(PEER_LOST, 0, told_by=2),
    }
    first = causes_of(placed(2, 2), [(rank, told[rank]) for rank in order])
    assert (
        first.judgement
        == "ranks on both sides have lost each other: the network between hosts h0, h1 is at fault"
    )
    assert first.rank in (0, 2)


def test_what_else_is_known_makes_no_judgement() -> None:
    packets = session(PEER_LOST, 1, text="packets larger than 575 bytes do not reach rank 1 (host h1)")
    left = session(
        PEER_LOST, 0, text="rank 0 (host h0) has given up the connection that broke, and opened another"
    )
    third = session(
        PEER_LOST, 1, told_by=0, text="packets larger than 575 bytes do not reach rank 1 (host h1)"
    )
    first = causes_of(placed(3, 1), [(1, left), (2, third), (0, packets)])
    assert (first.rank, first.judgement) == (0, "")
    first = causes_of(placed(3, 1), [(1, session(PEER_LOST, 0)), (2, session(PEER_LOST, 0, told_by=1))])
    assert (first.rank, first.judgement) == (1, "")  # rank 0 says nothing: it has stopped, or its host has


def test_ranks_of_one_host_are_judged_one_by_one() -> None:
    reports = [(1, session(PEER_LOST, 0)), (0, session(PEER_LOST, 1)), (2, session(PEER_LOST, 1))]
    first = causes_of(placed(1, 3), reports)
    assert (first.rank, first.judgement) == (0, "the reports of 2 of 3 ranks name rank 1 as lost")


# ---- sessions that tell by themselves


@given(st.permutations(range(4)), st.sampled_from([None, CONSEQUENCE, MIXED]))
def test_the_rank_that_aborted_is_the_cause(order: list[int], raised: int | None) -> None:
    text = "rank 2 aborted the job: loss is nan"
    reports = []
    for rank in order:
        data = session(ABORTED, 2, -1 if rank == 2 else 2, text)
        reports.append(
            (rank, data + (exception(raised, f"x.Aborted: {text}") if raised is not None else b""))
        )
    first = causes_of(placed(2, 2), reports)
    assert (first.rank, first.grade, first.error.partition(": ")[2]) == (2, OWN, text)


@given(st.permutations(range(3)))
def test_a_rank_that_raised_is_the_cause_though_its_session_failed_later(order: list[int]) -> None:
    own = exception(OWN, "ValueError: x") + session(PEER_LOST, 0, text="rank 0 (host h) left the job")
    told = {0: session(PEER_LOST, 1), 1: own, 2: session(PEER_LOST, 1, told_by=0)}
    first = causes_of(placed(1, 3), [(rank, told[rank]) for rank in order])
    assert (first.rank, first.error) == (1, "ValueError: x")


def test_a_rank_that_hides_the_error_is_no_cause() -> None:
    """Its own exception, its exit code, and the signal that ended it came after the failure of its session."""
    after = session(PEER_LOST, 3) + exception(OWN, "RuntimeError: training failed")
    causes = Causes()
    causes.report(0, after)
    causes.failed(0, 1, "exited with code 1", [])
    causes.report(1, session(PEER_LOST, 3, told_by=0))
    causes.failed(1, 5, "exited with code 5", [])
    causes.report(2, session(PEER_LOST, 3, told_by=0))
    causes.failed(2, 134, "was ended by signal 6 (SIGABRT)", [b"terminate called"])
    causes.report(4, session(PEER_LOST, 3, told_by=0))
    causes.failed(4, 137, "was ended by signal 9 (SIGKILL)", [])
    assert not causes.certain
    first = causes.first()
    assert first is not None
    assert (first.rank, first.grade, first.lost) == (0, MIXED, 3)
    assert (
        "after slipstream.base.errors.PeerLost: rank 3 (host h) has sent" in explained(first, "a", [], "")[-1]
    )
    causes.failed(3, 9, "exited with code 9", [])
    assert causes.certain
    first = causes.first()
    assert first is not None
    assert first.rank == 3


def test_a_program_that_goes_on_has_not_failed() -> None:
    causes = Causes()
    causes.report(0, session(PEER_LOST, 1))
    assert causes.first() is None
    causes.report(0, b'{"session": null}\n')
    causes.failed(0, 3, "exited with code 3", [])
    first = causes.first()
    assert first is not None
    assert (first.rank, first.grade, first.error) == (0, OWN, "")


def test_what_a_rank_said_does_not_count_once_the_job_goes_on_without_it() -> None:
    causes = Causes()
    causes.report(1, exception(OWN, "ValueError: an hour ago"))
    causes.forget({1})
    causes.report(0, session(PEER_LOST, 2))
    causes.failed(0, 5, "exited with code 5", [])
    first = causes.first()
    assert first is not None
    assert first.rank == 0


def test_a_rank_that_finished_after_its_job_had_failed_knows_why() -> None:
    causes = Causes()
    causes.report(1, session(PEER_LOST, 2))
    causes.finished(1)
    assert causes.first() is None
    causes.report(0, session(PEER_LOST, 1, text="rank 1 (host h) finished (exit code 0) and left the job"))
    causes.failed(0, 5, "exited with code 5", [])
    first = causes.first()
    assert first is not None
    assert (first.rank, first.code, first.how) == (1, 5, "finished (exit code 0), though its job had failed")
    assert causes.session_failed == {0, 1}


def test_an_abort_of_a_rank_that_finished_is_certain() -> None:
    causes = Causes()
    causes.report(1, session(ABORTED, 1, text="rank 1 aborted the job: enough"))
    causes.finished(1)
    assert not causes.certain  # nobody has failed
    causes.report(0, session(ABORTED, 1, 1, "rank 1 aborted the job: enough"))
    causes.failed(0, 5, "exited with code 5", [])
    assert causes.certain


@pytest.mark.parametrize(
    "told", [3, "x", [], {}, {"code": "1", "text": "x"}, {"code": 1}, {"code": 1, "text": 2}]
)
def test_sessions_without_sense_are_passed_over(told: object) -> None:
    causes = Causes()
    causes.report(0, json.dumps({"session": told}).encode())
    assert causes.session_failed == set()


def test_a_text_that_is_cut_amid_a_character_counts() -> None:
    causes = Causes()
    causes.report(0, session(PEER_LOST, 1, text="x").replace(b'"x"', b'"x\xc3"'))
    assert causes.session_failed == {0}


@given(st.binary())
def test_nothing_that_a_rank_writes_harms_the_launcher(data: bytes) -> None:
    Causes().report(0, data)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x)), st.text())
def test_no_field_of_a_record_harms_the_launcher(value: object, text: str) -> None:
    causes = Causes()
    for told in (
        {"code": value, "rank": value, "told_by": value, "text": text},
        {"code": 1, "rank": value, "text": text},
    ):
        causes.report(0, json.dumps({"session": told}).encode())
    causes.report(1, json.dumps({"grade": value, "text": text, "after": value}).encode())
    causes.failed(0, 1, "exited with code 1", [])
    assert causes.first() is not None


# ---- how long the launcher waits


@pytest.fixture
def job() -> FakeJob:
    return FakeJob()


def test_a_host_that_alone_has_said_something_may_be_cut_off(job: FakeJob) -> None:
    found = FirstCause(job.ending, job.deadlines, placed(3, 1), heartbeat=10.0)
    found.report(2, session(PEER_LOST, 0))
    found.failed(2, 1, "exited with code 1", [])
    job.after(3.0)
    assert not job.ending.begun
    found.report(0, session(PEER_LOST, 2))  # another host begins to tell
    found.report(1, session(PEER_LOST, 2, told_by=0))
    job.after(3.0)
    assert job.ending.begun
    assert found.found is not None
    assert found.found.rank == 0
    assert found.found.judgement.startswith("host h2 was cut off from the others")


@pytest.mark.parametrize("hosts", [2, 3])
def test_it_does_not_wait_for_ever(job: FakeJob, hosts: int) -> None:
    found = FirstCause(job.ending, job.deadlines, placed(hosts, 1), heartbeat=10.0)
    found.report(1, session(PEER_LOST, 0))
    found.failed(1, 1, "exited with code 1", [])
    job.after(3.0)
    assert job.ending.begun == (hosts == 2)  # both hosts see the same: nothing is to be learnt
    job.after(11.0)
    assert job.ending.begun == (hosts == 2)
    job.after(2.0)
    assert job.ending.begun


def test_it_does_not_wait_for_a_rank_that_has_ended(job: FakeJob) -> None:
    found = FirstCause(job.ending, job.deadlines, placed(3, 1), heartbeat=10.0)
    found.finished(0)
    found.report(2, session(PEER_LOST, 0))
    found.failed(2, 1, "exited with code 1", [])
    job.after(3.0)
    assert job.ending.begun
