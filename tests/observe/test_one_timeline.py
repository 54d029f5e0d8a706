"""One timeline for all ranks of a job, on one clock: what is in it, and what becomes of it when a part ends early."""

from __future__ import annotations

import errno
import json
import os
import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from comm import ranks
from observe.barriers import BARRIERS, spread
from slipstream.base.errors import PeerLost
from slipstream.comm.membership.meeting import Meeting
from slipstream.comm.rendezvous.requests import LATE, OK
from slipstream.comm.rendezvous.store import Store, connect_any
from slipstream.observe import collecting, forwarding
from slipstream.observe.alignment import Alignment
from slipstream.observe.collecting import CLOCK, END, EVENTS, MAX_TEXT, NUMBER, TIME, Collector, job_name
from slipstream.observe.forwarding import batches
from slipstream.observe.trace_file import TraceFile

RANK = Path(__file__).with_name("one_timeline_rank.py")


def load(file: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(file.read_text())
    return events


def names_by_rank(events: list[dict[str, Any]]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for event in events:
        if event.get("cat") == "operation":
            found.setdefault(event["pid"], []).append(event["name"])
    return found


@pytest.mark.parametrize(
    ("transport", "encrypt", "case"), [("tcp", "1", "work"), ("mixed", "0", "work"), ("mixed", "0", "wrong")]
)
def test_all_ranks_are_in_one_file(tmp_path: Path, transport: str, encrypt: str, case: str) -> None:
    file = tmp_path / "all.json"
    env = {"SLIPSTREAM_TIMELINE": str(file), "SLIPSTREAM_ENCRYPT": encrypt}
    ranks.run(RANK, 3, transport=transport, args=[case], env=env, encrypt=encrypt == "1")
    events = load(file)
    found = names_by_rank(events)
    assert sorted(found) == [0, 1, 2]
    for names in found.values():
        assert sorted(names) == sorted([f"gradient {i}" for i in range(BARRIERS)] + ["barrier"] * BARRIERS)
    assert {event["pid"] for event in events if event["name"] == "process_name"} == {0, 1, 2}
    if (
        transport == "mixed"
    ):  # else the ranks are on one host, which has one clock, and the script's lie stays
        assert (
            spread(events, 3) < 50_000
        )  # the clocks were 100 s apart, and half a second by what was measured


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_leaves_what_it_had_sent(tmp_path: Path, victim: int) -> None:
    file = tmp_path / "all.json"
    env = {"SLIPSTREAM_TIMELINE": str(file)}
    with ranks.started(RANK, 3, args=["killed", str(victim)], env=env) as started:
        codes = [rank.process.wait(60) for rank in started]
        assert codes == [-9 if rank == victim else 0 for rank in range(3)], [one.text() for one in started]
    text = file.read_text()
    assert text.rstrip().endswith("]") == (victim != 0)
    found = names_by_rank(json.loads(text if victim else text + "]"))
    assert "last words" in found[victim]
    if victim:
        assert all("in vain" in found[rank] for rank in (0, 1))  # what came after the failure is there, too


def test_a_full_disk_does_not_end_a_training() -> None:
    texts = ranks.run(RANK, 2, args=["goes_on"], env={"SLIPSTREAM_TIMELINE": "/dev/full"})
    assert all("2.0" in text.split() for text in texts)
    assert "slipstream: rank 0: the timeline ends here: No space left on device" in texts[0]


def test_rank_0_alone(tmp_path: Path) -> None:
    ranks.run(RANK, 2, args=["alone", str(tmp_path / "t.json")])
    assert names_by_rank(load(tmp_path / "t.json")) == {0: ["barrier"]}


def test_one_timeline_after_the_other(tmp_path: Path) -> None:
    ranks.run(RANK, 3, args=["again", str(tmp_path / "t.json")])
    for file, name in (("t.json", "one"), ("t.json.2", "two")):
        found = names_by_rank(load(tmp_path / file))
        assert sorted(found) == [0, 1, 2]
        assert all(name in names for names in found.values())


def test_a_forked_child_has_no_part_in_it(tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    ranks.run(RANK, 2, args=["forks"], env={"SLIPSTREAM_TIMELINE": str(file)})
    assert names_by_rank(load(file)) == {0: ["before", "after"], 1: ["before", "after"]}


def test_alignment() -> None:
    clock = Alignment(offset=1_000_000, error=50_000, at=0)
    clock.take(1_000, 1_000_000 + 101_000, 201_000)  # worse than what is known, and agrees with it
    assert clock.offset == 1_000_000
    clock.take(300_000, 1_320_000, 320_000)  # better
    assert (clock.offset, clock.error, clock.at) == (1_010_000, 10_000, 320_000)
    later = 600 * 10**9  # what is known is old, so that something worse is better
    clock.take(later, later + 1_300_000, later + 400_000)
    assert (clock.offset, clock.error) == (1_100_000, 200_000)
    clock.take(later, later + 10**9, later + 4_000_000)  # bad, but what is known cannot be right
    assert clock.offset == 10**9 - 2_000_000


def test_batches() -> None:
    assert list(batches([])) == []
    assert list(batches(["a", "b"])) == [["a", "b"]]
    long = "x" * (MAX_TEXT // 2)
    assert list(batches([long, long, "é" * MAX_TEXT, "z"])) == [[long], [long], ["z"]]


@pytest.fixture
def job() -> Iterator[Any]:
    meeting = Meeting(["127.0.0.1"], ["127.0.0.1"])
    membership = SimpleNamespace(secret=secrets.token_bytes(32), job="j", epoch="1")
    yield SimpleNamespace(
        membership=membership, settings=SimpleNamespace(encrypt=False), size=4, collecting=meeting
    )
    meeting.close()


def come(job: Any, rank: int) -> Store:
    place = job.collecting.place
    return connect_any(
        lambda: [("127.0.0.1", place.port)], job.membership.secret, job_name(job), 10.0, rank, ""
    )


def batch(number: int, text: str) -> bytes:
    return NUMBER.pack(number) + zlib.compress(text.encode())


def test_what_a_collector_takes(job: Any, tmp_path: Path) -> None:
    collector = Collector(job)
    path = tmp_path / "t"
    try:
        one = come(job, 1)
        assert one.request(CLOCK, b"\0", 10)[0] == LATE  # nothing is recorded
        file = TraceFile(str(path))
        collector.begin(file, 10**15)
        status, body = one.request(CLOCK, b"\0", 10)
        assert (status, TIME.unpack(body)[0] > 10**15) == (OK, True)
        for _ in range(2):  # the reply was lost
            assert one.request(EVENTS, batch(7, '{"name":"a"}'), 10)[0] == OK
        two = come(job, 2)
        for body in (
            b"\0",
            NUMBER.pack(1) + b"no deflated data",
            batch(1, "[]"),
            batch(1, "{" + " " * MAX_TEXT + "}"),
            batch(1, "{}")[:-2],
        ):
            with pytest.raises(PeerLost):  # it is cut off
                two.request(EVENTS, body, 10)
        stranger = come(job, 4)  # no rank of this job
        with pytest.raises(PeerLost):
            stranger.request(EVENTS, batch(1, "{}"), 10)
        assert one.request(END, b"\0", 10)[0] == OK
        assert one.request(EVENTS, batch(8, '{"name":"b"}'), 10)[0] == LATE
        assert collector.end() == [2, 3]
        file.finish()
        assert load(path) == [{"name": "a"}]
    finally:
        collector.close()


@pytest.mark.parametrize("who", ["the rank", "rank 0"])
def test_a_rank_that_has_ended_comes_anew(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Whoever has ended the timeline before first."""
    monkeypatch.setattr(collecting, "_LAST_EVENTS", 0.01)
    job.size = 2
    collector = Collector(job)
    try:
        one = come(job, 1)
        collector.begin(TraceFile(str(tmp_path / "one")), 0)
        if who == "rank 0":
            assert collector.end() == [1]
        assert one.request(END, b"\0", 10)[0] == (LATE if who == "rank 0" else OK)
        if who == "the rank":
            assert collector.end() == []
        collector.begin(TraceFile(str(tmp_path / "two")), 0)
        one.close()
        with collector._changed:
            assert collector._changed.wait_for(lambda: 1 not in collector._here, 60)
            assert collector._patience() > 0
    finally:
        collector.close()


def test_a_rank_that_cannot_reach_rank_0_says_so(
    job: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(forwarding, "_DIAL", 0.1)
    place = job.collecting.place
    job.collecting.close()
    job.rank, job.collector = 2, place
    way = forwarding.Forwarding(job, Alignment(0, 0, 0))
    assert not way.ready()
    assert not way.ready()  # it does not try again at once
    way.finish()
    (text,) = caplog.messages
    assert text.startswith(
        "the timeline lacks the events of rank 2: cannot reach rank 0, which writes the timeline, at"
    )


def test_a_file_takes_nothing_after_an_error() -> None:
    file = TraceFile("/dev/full")
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            file.write(["{}"])
    with pytest.raises(OSError, match="No space left"):
        file.finish()


@pytest.mark.parametrize("fits", [0, 5, 13, 40])
def test_a_file_on_a_full_disk_ends_behind_its_last_whole_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: int
) -> None:
    written = 0

    def write(file: int, data: bytes) -> int:
        nonlocal written
        if written == fits:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = os.pwrite(file, data[: fits - written], written)
        written += done
        return done

    path = tmp_path / "t"
    file = TraceFile(str(path))
    with monkeypatch.context() as patch:
        patch.setattr("slipstream.observe.trace_file.os.write", write)
        for number in range(fits // 9):  # bytes of an event, with what is before it
            file.write([f'{{"n":{number}}}'])
        with pytest.raises(OSError, match="No space left"):
            file.write(['{"torn":0}'])
    with pytest.raises(OSError, match="No space left"):
        file.finish()
    assert json.loads(path.read_text()) == [{"n": number} for number in range(fits // 9)]
