"""Survivors go on as a smaller job: whoever dies, again and again, and with the right sums."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import slipstream
from comm import ranks
from slipstream.base.settings import Settings
from slipstream.comm.membership import shrink
from slipstream.comm.membership.job import Job
from slipstream.comm.rendezvous.store import Store

SCRIPT = Path(__file__).with_name("shrink_rank.py")
LIMIT = 90  # seconds


def lines(rank: ranks.Rank) -> list[dict[str, Any]]:
    return [json.loads(line) for line in rank.text().splitlines() if line.startswith("{")]


def results(job: list[ranks.Rank], victims: set[int]) -> dict[int, list[dict[str, Any]]]:
    """What each survivor printed; AssertionError if one hangs or fails."""
    for rank in job:
        try:
            code = rank.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            texts = "\n".join(f"--- rank {one.number}\n{one.text()}" for one in job)
            raise AssertionError(f"rank {rank.number} hangs\n{texts}") from None
        assert code == (-9 if rank.number in victims else 0), f"rank {rank.number}: {rank.text()}"
    return {rank.number: lines(rank) for rank in job if rank.number not in victims}


@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
@pytest.mark.parametrize("victim", [0, 1])
def test_one_of_three_dies(transport: str, victim: int) -> None:
    """Rank 0 is the one that would serve the store without a launcher."""
    with ranks.started(SCRIPT, 3, transport=transport, args=["rounds", str(victim)]) as job:
        found = results(job, {victim})
        texts = {rank.number: rank.text() for rank in job}
    alive = [r for r in range(3) if r != victim]
    for number, (change, done) in found.items():
        assert change == {"error": "PeerLost", "rank": victim, "now": alive.index(number), "size": 2}
        assert done == {"done": alive}
        assert f"slipstream: rank {alive.index(number)}: this rank goes on\n" in texts[number]


@pytest.mark.parametrize(
    ("setting", "words"), [("summary", "will be printed at the end"), ("timeline", "no timeline")]
)
def test_a_folder_that_the_new_rank_0_lacks_ends_no_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, setting: str, words: str
) -> None:
    folder = tmp_path / "of rank 0 alone"
    folder.mkdir()
    slipstream.init(rank=0, size=1, settings=Settings(**{setting: str(folder / "file.json")}))
    try:
        shutil.rmtree(folder)
        slipstream.world().shrink()
        assert slipstream.size() == 1
        slipstream.barrier()
    finally:
        slipstream.shutdown()
    assert words in caplog.text


def test_two_of_four_die_at_once() -> None:
    with ranks.started(SCRIPT, 4, args=["rounds", "0,2"]) as job:
        found = results(job, {0, 2})
    for number, said in found.items():
        assert said[-1] == {"done": [1, 3]}
        assert (said[0]["size"], said[0]["now"]) == (2, [1, 3].index(number))


def test_a_job_shrinks_again_and_again() -> None:
    with ranks.started(SCRIPT, 5, transport="mixed", args=["rounds", "3;0"]) as job:
        found = results(job, {0, 3})
    for said in found.values():
        assert [one.get("size") for one in said] == [4, 3, None]
        assert said[-1] == {"done": [1, 2, 4]}


@pytest.mark.parametrize(("where", "second"), [("join", 2), ("lead", 0)])
def test_another_rank_dies_while_the_survivors_meet(where: str, second: int) -> None:
    with ranks.started(SCRIPT, 5, args=[where, "1", str(second)]) as job:
        found = results(job, {1, second})
    assert all(said[-1] == {"done": [r for r in range(5) if r not in (1, second)]} for said in found.values())


def test_less_than_half_of_the_ranks_do_not_go_on_unless_they_may() -> None:
    with ranks.started(SCRIPT, 3, args=["few", "1,2", "0"]) as job:
        (refused,) = results(job, {1, 2})[0]
    assert refused["error"] == "Aborted"
    assert "only 1 of 3 ranks are left" in refused["text"]
    with ranks.started(SCRIPT, 3, args=["few", "1,2", "1"]) as job:
        assert results(job, {1, 2})[0] == [{"size": 1}]


def test_a_leader_that_does_not_come_is_named() -> None:
    with ranks.started(SCRIPT, 3, args=["absent"]) as job:
        job[2].process.wait(LIMIT)
        (found,) = lines(job[2])
    assert found["error"] == "Timeout"
    assert "rank 0, which leads, lives but has not called shrink" in found["text"]


def test_abort_reaches_all_ranks_and_they_may_go_on() -> None:
    with ranks.started(SCRIPT, 3, args=["abort"]) as job:
        found = results(job, set())
    for number, (aborted, done) in found.items():
        assert "rank 1 aborted the job: the loss is not a number" in aborted["text"], number
        assert done == {"done": True}


def test_shrinking_often_leaves_no_sockets_behind() -> None:
    with ranks.started(SCRIPT, 3, args=["often"]) as job:
        found = results(job, set())
    for said in found.values():
        *open_after, at_the_end = [one["listening"] for one in said]
        assert len(set(open_after)) == 1, open_after
        assert at_the_end == 0


class Meeting:
    """What one rank sees of a meeting, with a clock of its own: who answers it, and who comes after how many asks."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, rank: int, answers: set[int], comes: dict[int, int]
    ) -> None:
        self.now, self.asks, self.answers, self.comes = 0.0, 0, answers, comes
        self.waited: dict[int, float] = {}  # per rank that does not answer: the seconds it was given
        monkeypatch.setattr(shrink, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))
        old = SimpleNamespace(
            rank=rank,
            size=4,
            session=self,
            meeting=SimpleNamespace(places=()),
            membership=SimpleNamespace(job="job", epoch="epoch"),
            settings=SimpleNamespace(heartbeat=5.0),
        )
        self.survivors = shrink._Survivors(cast(Job, old), 60.0, 1, may_split=True)
        self.survivors.store = cast(Store, self)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def probe(self, ranks: list[int], seconds: float) -> list[int]:
        self.asks += 1
        silent = [r for r in ranks if r not in self.answers]
        for rank in silent:
            self.waited[rank] = self.waited.get(rank, 0.0) + seconds
        if silent:
            self.now += seconds
        return [r for r in ranks if r in self.answers]

    def get(self, key: str, _: float) -> bytes:
        rank = key.rpartition("/")[2]
        if self.asks < self.comes.get(int(rank), 1 << 30):
            raise slipstream.Timeout("not there")
        return b"here"

    def set(self, *_: object) -> None:
        """Takes the decision."""


def test_a_silent_rank_is_waited_for_once_while_another_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(monkeypatch, 0, {1, 3}, {1: 1, 3: 4})
    assert meeting.survivors._decide()[0] == [0, 1, 3]
    assert meeting.waited == {2: 5.0}


def test_a_silent_rank_that_comes_after_all_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(monkeypatch, 0, {1, 3}, {1: 1, 2: 2, 3: 3})
    assert meeting.survivors._decide()[0] == [0, 1, 2, 3]
    # Another one dies, and they meet again: it is waited for like all that live.
    meeting.answers, meeting.asks, meeting.comes = {2, 3}, 0, {2: 2, 3: 1}
    assert meeting.survivors._decide()[0] == [0, 2, 3]


def test_a_silent_rank_is_not_waited_for_again_by_who_leads_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(monkeypatch, 1, {2, 3}, {2: 2, 3: 3})
    assert meeting.survivors._find_leader() == 1
    assert meeting.survivors._decide()[0] == [1, 2, 3]
    assert meeting.waited == {0: 5.0}


def test_a_silent_rank_that_answers_again_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(monkeypatch, 2, {1}, {})
    assert meeting.survivors._find_leader() == 1
    assert meeting.survivors._find_leader() == 1
    assert meeting.waited[0] < 2 * 5.0
    meeting.answers.add(0)
    assert meeting.survivors._find_leader() == 0
