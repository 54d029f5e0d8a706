"""Warnings of operations that a rank has not called, whatever else goes on. The clock is the test's."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slipstream.base.errors import Timeout
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation import rounds as rounds_module
from slipstream.comm.negotiation.agreement import JOIN, Agreement, Request
from slipstream.comm.negotiation.messages import await_others
from slipstream.comm.negotiation.negotiated import DONE, Negotiated
from slipstream.comm.negotiation.order import LockedOrder
from slipstream.comm.negotiation.overdue import WARN, WARN_AGAIN, Overdue
from slipstream.comm.negotiation.rounds import Rounds

STEP = 0.4  # seconds
SIZE = 3
LIMIT = 1800.0


def request(name: str) -> Request:
    return Request("allreduce", name, "")


class Job:
    """Three ranks, seen by one of them: `Rounds` is what it has, and of the others there is the `Agreement`."""

    def __init__(self, rank: int, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.aborted = ""
        self.meanwhile: Callable[[], None] | None = None  # what a round does that waits for other ranks
        self.round_takes: Callable[[], None] = lambda: None
        self.rank = rank
        settings = SimpleNamespace(timeout=LIMIT, fusion_threshold=0)
        session = SimpleNamespace(abort=self._abort)
        native = SimpleNamespace(ranks=list(range(SIZE)))
        job = SimpleNamespace(settings=settings)
        group = SimpleNamespace(session=session, native=native, rank=rank, size=SIZE, job=job)
        group.beside, group.use = lambda _: group, lambda *_: None
        patch.setattr(rounds_module, "exchange", self._exchange)
        self.rounds = Rounds(cast(Group, group), self._begin, lambda: self.now)
        self._others = {place: Agreement(range(SIZE)) for place in range(SIZE) if place != rank}
        self._told: dict[int, list[Request]] = {}
        self._waiting: dict[str, Negotiated] = {}  # this rank's
        self._open: dict[int, set[str]] = {place: set() for place in self._others}
        self.order: LockedOrder | None = None
        self.locks = 0

    def _abort(self, why: str) -> None:
        self.aborted = why

    def _begin(self, call: Negotiated, *_: object) -> None:
        self._waiting.pop(call.request.name, None)

    def _exchange(
        self,
        _group: object,
        mine: bytes,
        _what: object,
        endless: bool = False,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[bytes]:
        self.meanwhile = meanwhile
        self.round_takes()
        told = {place: one.encode(self._told.get(place, [])) for place, one in self._others.items()}
        told[self.rank] = mine
        messages = [told[place] for place in range(SIZE)]
        for place, one in self._others.items():
            for decision in one.decide(messages):
                self._open[place].discard(decision.request.name)
        return messages

    def round(self, calls: dict[int, list[str]]) -> None:
        """Each rank announces what it calls now; a locked order ends, as what it calls is not in it."""
        self._told = {place: [request(name) for name in calls.get(place, [])] for place in self._others}
        for place in self._others:
            self._open[place] |= set(calls.get(place, []))
        for name in calls.get(self.rank, []):
            call = Negotiated(cast(Any, None), request(name), lambda _: DONE, None)
            call.since = self.now
            self._waiting[name] = call
        new = [one for one in self._waiting.values() if not one.announced]
        if self.order is None:
            self.order = self.rounds.run(new)
        else:
            for place, names in self._open.items():
                self._told[place] = [request(name) for name in sorted(names)]
            self.order, _ = self.rounds.unlock(self.order, new)
        if self.order is not None:
            self.locks += 1
            for one in self._others.values():
                one.forget()


@pytest.fixture
def job(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(getattr(request, "param", 0), monkeypatch)


def everyone(name: str) -> dict[int, list[str]]:
    return {place: [name] for place in range(SIZE)}


@pytest.mark.parametrize("job", [0, 1, 2], indirect=True)
@pytest.mark.parametrize("others", ["same", "new"])
def test_what_a_rank_has_not_called_is_named_while_others_go_on(
    job: Job, others: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also while the order of these is locked again and again; and those are not named."""
    job.round({0: ["lonely"], 2: ["lonely"]})
    times = []
    for step in range(200):
        job.now += STEP
        before = len(caplog.records)
        job.round(everyone("b" if others == "same" else f"b{step}"))
        times += [job.now] * (len(caplog.records) - before)
    assert (job.locks > 0) == (others == "same")
    assert len(times) == 2, caplog.messages
    assert WARN <= times[0] <= WARN + 2
    assert WARN_AGAIN <= times[1] - times[0] <= WARN_AGAIN + 2
    for text, at in zip(caplog.messages, times, strict=True):
        assert text == f"not all ranks have called allreduce 'lonely' (missing: rank 1), for {at:.0f} s now"


@pytest.mark.parametrize("job", [0, 1], indirect=True)
def test_each_operation_has_an_age_of_its_own(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """What has just been called is not named, and is named when its own time has come."""
    job.round({0: ["lonely"], 2: ["lonely"]})
    later = 4.0
    while job.now < WARN + later + 2:
        job.now += STEP
        job.round({0: ["young"], 1: ["young"]} if abs(job.now - later) < STEP / 2 else everyone("b"))
    assert [text.partition(", for")[0] for text in caplog.messages] == [
        "not all ranks have called allreduce 'lonely' (missing: rank 1)",
        "not all ranks have called allreduce 'young' (missing: rank 2)",
    ]


@pytest.mark.parametrize("job", [1], indirect=True)
def test_a_rank_that_is_late_each_time_is_not_blamed(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """Whenever it looks, the others have called an operation of one name: each time it is another one."""
    job.round({0: ["b"], 2: ["b"]})
    for _ in range(100):
        job.round({1: ["b"]})
        job.now += 1  # it looks
        job.round({0: ["b"], 2: ["b"]})
    assert not caplog.messages


def test_a_round_that_waits_for_a_rank_warns_of_older_operations(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    """Of what is announced in that round the engine warns in time, and with more words."""
    job.round({0: ["lonely"], 2: ["lonely"]})
    job.now = 5.0
    job.round(everyone("b"))

    def wait() -> None:
        assert job.meanwhile is not None
        for job.now in (6.0, 9.0, WARN + 1, WARN + 5, WARN + 8):
            job.meanwhile()

    job.round_takes = wait
    job.round({0: ["mine"]})
    assert caplog.messages == [
        f"not all ranks have called allreduce 'lonely' (missing: rank 1), for {WARN + 1:.0f} s now"
    ]


def test_an_operation_that_waits_too_long_ends_the_job_while_others_go_on(job: Job) -> None:
    job.round({0: ["lonely"]})
    job.now = LIMIT - 1
    job.round(everyone("b"))
    job.round({1: ["young"]})
    job.now = LIMIT + 1
    with pytest.raises(Timeout, match=r"allreduce 'lonely' \(missing: ranks 1-2\), for 1801 s now$"):
        job.round(everyone("b"))
    assert "Timed out after 1801 s (SLIPSTREAM_TIMEOUT" in job.aborted


def test_nobody_is_warned_of_ranks_that_have_joined(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call = Negotiated(cast(Any, None), Request(JOIN, "", "no more batches"), lambda _: DONE, None)
    call.since = 0.0
    job._waiting[JOIN] = call
    job.rounds.take_part = lambda *_: DONE
    for _ in range(100):
        job.now += 1
        job.round({1: ["b"], 2: ["b"]})
    assert not caplog.messages


def test_warnings_that_become_due_together_are_one() -> None:
    overdue = Overdue()
    keys = [("allreduce", f"{i}") for i in range(10)]
    for number, key in enumerate(keys):
        overdue.see(key, number * 0.1)
    assert overdue.due(WARN - 0.1) == []
    assert overdue.due(WARN + 0.25) == keys[:3]
    assert overdue.due(WARN + 1) == []
    assert overdue.due(WARN + 2.3) == keys[3:]
    overdue.end(keys[:1])
    assert overdue.due(WARN + WARN_AGAIN + 5) == keys[1:]
    overdue.see(keys[0], 100.0)
    assert overdue.since(keys[0]) == 100.0


@pytest.mark.parametrize("fails", [False, True])
def test_a_wait_is_looked_after_until_it_ends(fails: bool) -> None:
    """A wait that ends by its own limit raises that; what `wait` raises before is only that it lasts."""
    did: list[str] = []

    class Work:
        left = 5

        def done(self) -> bool:
            return fails and self.left == 0

        def wait(self, timeout: float | None = None) -> None:
            if self.left == 0:
                if fails:
                    raise Timeout("the limit of the operation" if timeout is None else "ended")
                return
            self.left -= 1
            raise Timeout("not yet")

        def entitle(self, title: str) -> None:
            did.append(title)

    if fails:
        with pytest.raises(Timeout, match="the limit of the operation"):
            await_others(Work(), lambda: "it", meanwhile=lambda: did.append("looked"))
    else:
        await_others(Work(), lambda: "it", meanwhile=lambda: did.append("looked"))
    assert did == ["it"] + ["looked"] * 4
