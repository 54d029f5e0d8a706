"""What becomes of a job, as its agents tell of its ranks. Nothing is started here."""

from __future__ import annotations

import json
import os
import selectors
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from launch.fake_agents import FakeJob
from slipstream.base.excepthook import CONSEQUENCE, OWN
from slipstream.launch import wire
from slipstream.launch.agents import Agent, Destination
from slipstream.launch.signals import SignalWatch
from slipstream.launch.wire import PREAMBLE, Spec, SpecRank, message

SIGNAL, KILL = wire.SIGNAL, wire.KILL


def started(rank: int) -> bytes:
    return message(wire.STARTED, rank, wire.PID.pack(1))


def exited(rank: int, code: int) -> bytes:
    return message(wire.EXITED, rank, wire.CODE.pack(code))


def report(rank: int, grade: int, text: str) -> bytes:
    return message(wire.REPORT, rank, json.dumps({"grade": grade, "text": text}).encode() + b"\n")


@pytest.fixture
def make() -> Iterator[Callable[..., FakeJob]]:
    with ExitStack() as jobs:

        def made(**options: Any) -> FakeJob:
            job = FakeJob(**options)
            jobs.callback(job.close)
            for agent in (job.here, job.there):
                job.hear(agent, PREAMBLE)
            return job

        yield made


def raising(rank: int, text: str, grade: int = OWN) -> list[bytes]:
    """What the agent passes on of a rank that raises."""
    shown = f"Traceback (most recent call last):\n{text}\n"
    records = [{"shown": shown[:9]}, {"shown": shown[9:]}, {"grade": grade, "text": text}]
    said = "".join(json.dumps(one) + "\n" for one in records).encode()
    return [message(wire.REPORT, rank, said), message(wire.ERR, rank, shown.encode())]


# ---- tracebacks


def test_a_traceback_is_held_back_until_the_cause_is_known(make: Callable[..., FakeJob]) -> None:
    job = make()
    held = [*raising(0, "KeyError: 1"), message(wire.ERR, 0, b"another line\n"), *raising(1, "x.KeyError: 2")]
    job.hear(job.here, started(0), started(1), *held)
    assert job.said() == ["[0] another line"]
    job.hear(job.here, exited(1, 1))
    job.after(60.0)
    assert job.said() == []  # it ends
    assert job.ranks.tracebacks.of(1) == "Traceback (most recent call last):\nx.KeyError: 2"
    assert job.ranks.tracebacks.others(1).startswith("raised as well: KeyError on rank 0 (")
    assert job.ranks.tracebacks.others(0).startswith("raised as well: KeyError on rank 1 (")


def test_the_likely_cause_is_shown_if_the_job_goes_on(make: Callable[..., FakeJob]) -> None:
    job = make()
    lost = raising(0, "PeerLost: x", CONSEQUENCE)
    job.hear(job.here, started(0), started(1), *lost, *raising(1, "KeyError: 2"))
    assert job.said() == []
    job.after(60.0)
    assert job.said() == ["[1] Traceback (most recent call last):", "[1] KeyError: 2"]
    job.hear(job.here, message(wire.ERR, 1, b"Traceback (most recent call last):\n"))
    assert job.said() == ["[1] Traceback (most recent call last):"]
    assert job.ranks.tracebacks.of(1) == job.ranks.tracebacks.others(0) == ""
    assert job.ranks.tracebacks.of(0).endswith("PeerLost: x")


def test_a_lost_rank_shows_its_traceback(make: Callable[..., FakeJob]) -> None:
    job = make(min_np=2)
    job.hear(job.here, started(0), started(1), *raising(1, "KeyError: 2"), exited(1, 1))
    assert job.said()[:2] == ["[1] Traceback (most recent call last):", "[1] KeyError: 2"]


def test_an_interrupt_holds_nothing_back(make: Callable[..., FakeJob]) -> None:
    job = make()
    job.hear(job.here, started(0), started(1))
    job.ending.interrupt(signal.SIGINT)
    job.hear(job.here, *raising(1, "KeyboardInterrupt"))
    assert job.said() == ["[1] Traceback (most recent call last):", "[1] KeyboardInterrupt"]


# ---- failures


def test_a_rank_that_fails_by_itself_ends_all(make: Callable[..., FakeJob]) -> None:
    job = make()
    job.hear(job.here, started(0), started(1), exited(1, 3))
    assert job.ending.exit_code == 3
    assert [process.told() for process in job.processes] == [[SIGNAL], [SIGNAL]]
    assert job.told == [(1, "exited with code 3")]
    job.hear(job.here, exited(0, -15))  # it ended because the job does
    found = job.ranks.first_cause.found
    assert found is not None
    assert (found.rank, job.ending.exit_code) == (1, 3)


def test_a_signal_counts_as_128_and_its_number(make: Callable[..., FakeJob]) -> None:
    job = make()
    job.hear(job.there, exited(2, -9))
    assert job.ending.exit_code == 137


def test_all_that_comes_at_once_counts(make: Callable[..., FakeJob]) -> None:
    job = make()
    lost = [report(rank, CONSEQUENCE, "PeerLost: rank 3 is gone") for rank in range(3)]
    job.hear(job.there, lost[2], exited(2, 1))
    job.hear(job.here, *lost[:2], exited(0, 1), exited(1, 1))
    job.hear(job.there, report(3, OWN, "ValueError: x"), exited(3, 7))
    assert job.ending.exit_code == 7
    job = make()
    job.hear(job.there, exited(2, 0), exited(3, 0))
    job.hear(job.here, *lost[:2], exited(0, 1), report(1, OWN, "ValueError: x"), exited(1, 7))
    assert job.ending.exit_code == 7


def test_a_rank_that_lost_another_waits_for_the_cause(make: Callable[..., FakeJob]) -> None:
    job = make()
    job.hear(job.here, report(0, CONSEQUENCE, "PeerLost: rank 2 is gone"), exited(0, 1))
    job.after(2)
    assert not job.ending.begun
    job.hear(job.there, report(2, OWN, "ValueError: x"), exited(2, 7))
    assert job.ending.exit_code == 7


def test_it_does_not_wait_for_long_or_when_all_have_ended(make: Callable[..., FakeJob]) -> None:
    lost = report(0, CONSEQUENCE, "PeerLost: rank 2 is gone") + exited(0, 1)
    job = make()
    job.hear(job.here, lost)
    job.after(2.5)
    assert job.ending.exit_code == 1
    job = make()
    job.hear(job.here, lost, exited(1, 0))
    job.hear(job.there, exited(2, 0))
    assert not job.ending.begun
    job.hear(job.there, exited(3, 0))
    assert job.ending.exit_code == 1
    assert job.ranks.finished == {1, 2, 3}


def test_the_job_goes_on_while_enough_ranks_are_left(make: Callable[..., FakeJob]) -> None:
    job = make(min_np=2)
    job.hear(job.here, exited(1, 3))
    job.ranks.on_lost(job.there)
    assert job.said() == [
        "rank 1 on host a exited with code 3; the job goes on with 3 of 4 ranks (--min-np 2)",
        "host b: the connection (ssh) ended with code 255; ranks 2, 3 did not start",
    ]
    assert job.ending.exit_code == 1  # one is left


def test_an_agent_that_breaks_the_protocol_ends_the_job(make: Callable[..., FakeJob]) -> None:
    job = make()
    with pytest.raises(ValueError, match="rank 0, which is not on this host") as error:
        job.hear(job.there, started(0))
    job.ranks.on_malformed(job.there, error.value)
    assert job.said() == [
        "host b: its agent breaks the protocol: it speaks for rank 0, which is not on this host"
    ]
    assert job.ending.exit_code == 1


# ---- ranks that are late


def test_ranks_that_do_not_start_in_time_are_named(make: Callable[..., FakeJob]) -> None:
    job = make(start_timeout=20.0)
    job.ranks.start_watch.begin()
    job.hear(job.here, started(0), started(1))
    job.hear(job.there, started(3))
    job.after(20)
    assert job.said() == ["host b did not start rank 2 within 20 s (--start-timeout)"]
    assert [process.terminated for process in job.processes] == [False, True]
    assert job.ending.exit_code == 1


def test_once_all_have_started_no_time_runs(make: Callable[..., FakeJob]) -> None:
    job = make(start_timeout=20.0, verbose=True)
    job.ranks.start_watch.begin()
    job.hear(job.here, started(0), started(1))
    job.hear(job.there, started(2), started(3), started(3))
    job.after(20)
    assert job.said() == ["ranks started: 4 of 4"]
    assert not job.ending.begun


def test_ranks_that_go_on_after_others_are_named_ever_less_often(make: Callable[..., FakeJob]) -> None:
    job = make()
    job.hear(job.here, exited(0, 0))
    line = "other ranks have finished; still running: rank {}. Is it stopped, or does it wait for one that has ended? "
    line += "Ctrl-C ends the job"
    job.after(9)
    assert job.said() == []
    job.after(1)
    assert job.said() == [line.format("1 (host a), 2, 3 (host b)")]
    job.hear(job.here, exited(1, 0))
    job.after(59)
    assert job.said() == []
    job.after(1)
    assert job.said() == [line.format("2, 3 (host b)")]
    job.hear(job.there, exited(2, 0), exited(3, 0))
    job.after(360)
    assert (job.said(), job.ending.exit_code) == ([], 0)


# ---- the end


def test_interrupts_ask_then_kill(make: Callable[..., FakeJob]) -> None:
    job = make()
    job.ending.interrupt(signal.SIGINT)
    assert [process.told() for process in job.processes] == [[SIGNAL], [SIGNAL]]
    job.hear(job.here, exited(0, 1))
    assert job.ranks.first_cause.found is None
    job.ending.interrupt(signal.SIGINT)
    assert [process.told() for process in job.processes] == [[KILL], [KILL]]
    assert job.ending.exit_code == 130


def test_agents_that_do_not_answer_are_given_up(make: Callable[..., FakeJob]) -> None:
    job = make()
    reader, writer = os.pipe()
    job.there.open.add(reader)
    job.selector.register(reader, selectors.EVENT_READ)
    job.ending.fail(5)
    job.after(14)
    assert job.pool.open
    assert not job.pool.abandoned
    job.after(1)
    assert not job.pool.open
    assert job.pool.abandoned
    assert job.said() == ["host b does not report that its processes ended"]
    assert all(process.stdin.closed for process in job.processes)
    os.close(reader)
    os.close(writer)


# ---- reducers


def with_reducer(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> Agent:
    """Starts one on host c."""
    agent = job.agent("c", 0)
    monkeypatch.setattr(job.pool, "start", lambda *_: agent)
    spec = Spec([], "/", {}, False, [SpecRank(0, {})])
    job.reducers.start(Destination("c", "c", None), spec, "192.0.2.1")
    return agent


def test_the_job_goes_on_without_a_reducer(
    make: Callable[..., FakeJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make()
    agent = with_reducer(job, monkeypatch)
    assert not job.reducers.settled
    job.reducers.on_frame(agent, wire.OUT, 0, b'{"event": "listening", "port": 7}\n')
    assert job.reducers.settled
    assert job.reducers.found() == [("192.0.2.1", 7)]
    job.reducers.on_frame(agent, wire.EXITED, 0, wire.CODE.pack(-9))
    said = "was ended by signal 9 (SIGKILL); the job goes on without it"
    assert job.said() == [f"warning: the reducer on host c: {said}"]
    assert not job.ending.begun
    assert job.reducers.found() == []


def test_a_reducer_that_does_not_start_is_no_longer_waited_for(
    make: Callable[..., FakeJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make()
    with_reducer(job, monkeypatch)
    job.after(30)
    assert job.said() == [
        "warning: the reducer on host c: it did not start within 30 s; the job goes on without it"
    ]
    assert job.processes[-1].terminated
    assert job.reducers.settled


# ---- signals


def test_a_signal_interrupts_at_once_and_wakes_the_loop_later() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []
    with selectors.DefaultSelector() as selector:
        watch = SignalWatch(selector, seen.append, lambda: seen.append("woken"))
        try:
            signal.raise_signal(signal.SIGTERM)
            assert seen == [signal.SIGTERM]
            for key, events in selector.select(0):
                key.data(key.fd, events)
            assert seen == [signal.SIGTERM, "woken"]
            assert selector.select(0) == []
        finally:
            watch.close()
    assert signal.getsignal(signal.SIGTERM) is before
