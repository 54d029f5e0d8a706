"""What ranks of a host read in each other's private memory is what was sent, or does not count."""

from __future__ import annotations

import json
import signal
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("single_copy_rank.py")
ON = {"SLIPSTREAM_SINGLE_COPY": "on"}


def numbers(rank: ranks.Rank) -> list[int]:
    return [int(line) for line in rank.text().splitlines() if line.isdecimal()]


def lines(rank: ranks.Rank) -> list[Any]:
    return [json.loads(line) for line in rank.text().splitlines() if line.startswith(("{", "["))]


def finish(job: list[ranks.Rank]) -> list[Any]:
    """The last line of each rank."""
    for rank in job:
        rank.process.wait(120)
    for rank in job:
        assert rank.process.returncode == 0, rank.text()
    return [lines(rank)[-1] for rank in job]


@pytest.mark.parametrize(
    ("n", "choice"),
    [
        *product([1, 2, 3, 4], ["auto", "on", "off", "mixed"]),
        (8, "auto"),
        (8, "mixed"),
        *(pytest.param(8, choice, marks=pytest.mark.slow) for choice in ("on", "off")),
    ],
)
def test_all_that_moves_is_right(n: int, choice: str) -> None:
    envs = {
        r: {"SLIPSTREAM_SINGLE_COPY": choice if choice != "mixed" else ("on", "off")[r % 2]} for r in range(n)
    }
    with ranks.started(SCRIPT, n, args=["movements"], envs=envs) as job:
        found = finish(job)
    for rank, links in enumerate(found):
        assert len(links) == n - 1
        others = [r for r in range(n) if r != rank]
        for peer, (possible, copied) in zip(others, links, strict=True):
            if choice == "off" or (choice == "mixed" and (rank % 2 or peer % 2)):
                assert not possible
            elif choice != "auto":  # which measures whether it pays
                assert possible
            assert (copied > 0) == (possible and choice != "auto") or choice == "auto"


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("choice", ["on", "auto", "off"])
def test_sums_are_right(n: int, choice: str) -> None:
    with ranks.started(SCRIPT, n, args=["sums"], env={"SLIPSTREAM_SINGLE_COPY": choice}) as job:
        for rank in job:
            rank.process.wait(120)
            assert rank.process.returncode == 0, rank.text()
            (copied,) = numbers(rank)
            assert choice == "auto" or (copied > 0) == (choice == "on"), copied


def test_the_last_byte_may_be_the_last_that_is_mapped() -> None:
    with ranks.started(SCRIPT, 3, args=["ends_at_a_page"], env=ON) as job:
        for links in finish(job):
            assert all(possible and copied > 0 for possible, copied in links)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_ends_in_the_middle_is_named(tmp_path: Path, how: signal.Signals) -> None:
    env = {**ON, "SLIPSTREAM_HEARTBEAT": "1"}
    with ranks.started(SCRIPT, 3, args=["lost", str(tmp_path)], env=env) as job:
        deadline = time.monotonic() + 60
        while not all((tmp_path / f"running{r}").exists() for r in range(3)):
            assert time.monotonic() < deadline, [rank.text() for rank in job]
            time.sleep(0.003)  # a poll of files
        job[1].process.send_signal(how)
        for rank in (job[0], job[2]):
            rank.process.wait(60)
            assert rank.process.returncode == 0, rank.text()
            assert lines(rank) == [{"error": "PeerLost", "rank": 1}]
        if how == signal.SIGSTOP:
            job[1].process.send_signal(signal.SIGCONT)
            job[1].process.wait(60)
            assert "error" in lines(job[1])[0], job[1].text()


def test_memory_that_is_used_again_does_not_arrive(tmp_path: Path) -> None:
    with ranks.started(SCRIPT, 2, args=["reused", str(tmp_path)], env=ON) as job:
        for rank in job:
            rank.process.wait(60)
            assert "AssertionError" not in rank.text(), rank.text()
        assert lines(job[1])[0]["error"] == "Aborted", job[1].text()


def test_a_message_leaves_before_it_is_asked_for(tmp_path: Path) -> None:
    with ranks.started(SCRIPT, 2, args=["ahead", str(tmp_path)], env=ON) as job:
        finish(job)


def test_a_message_that_nobody_takes_ends_by_its_limit(tmp_path: Path) -> None:
    env = {**ON, "SLIPSTREAM_TIMEOUT": "4"}
    with ranks.started(SCRIPT, 2, args=["unread", str(tmp_path)], env=env) as job:
        for rank in job:
            rank.process.wait(90)
        assert lines(job[0]) == [{"error": "Timeout"}], job[0].text()


@pytest.mark.parametrize("what", ["shared", "short"])
def test_a_sender_does_not_run_ahead_without_end(what: str) -> None:
    with ranks.started(SCRIPT, 2, args=["held_back", what], env=ON) as job:
        for rank in job:
            rank.process.wait(90)
            assert rank.process.returncode == 0, rank.text()
        assert lines(job[0])[0]["done"] < 100, job[0].text()


def test_a_sender_that_ends_after_its_message_has_left_is_named(tmp_path: Path) -> None:
    with ranks.started(SCRIPT, 2, args=["ended_ahead", str(tmp_path)], env=ON) as job:
        job[0].process.wait(60)
        (tmp_path / "ended").touch()
        job[1].process.wait(60)
        assert lines(job[1]) == [{"error": "PeerLost", "rank": 0}], job[1].text()


def test_a_forked_child_is_not_taken_for_its_parent() -> None:
    with ranks.started(SCRIPT, 2, args=["children"], env=ON) as job:
        assert all(possible for links in finish(job) for possible, _ in links)


def test_what_cannot_be_read_is_said() -> None:
    env = {"SLIPSTREAM_LOG": "info", "SLIPSTREAM_SINGLE_COPY": "auto"}
    envs = {1: {"SLIPSTREAM_SINGLE_COPY": "off"}}
    with ranks.started(SCRIPT, 2, args=["movements"], env=env, envs=envs) as job:
        finish(job)
        text = job[0].text()
    assert "large data for rank 1 is copied twice" in text
    assert "its SLIPSTREAM_SINGLE_COPY is off" in text
