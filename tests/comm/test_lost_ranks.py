"""Who hears of a rank that is lost, finishes or raises, and in what words: also without a link to it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from comm import ranks
from slipstream.comm.membership.failures import parting_words

SCRIPT = Path(__file__).with_name("lost_rank.py")
HOST = socket.gethostname()
LIMIT = 60  # seconds, far below the limits of start and operation that the ranks have


def report(rank: ranks.Rank) -> dict[str, Any]:
    try:
        rank.process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"rank {rank.number} hangs:\n{rank.text()}") from None
    lines = [line for line in rank.text().splitlines() if line.startswith("{")]
    assert len(lines) == 1, rank.text()
    found: dict[str, Any] = json.loads(lines[0])
    return found


@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
@pytest.mark.parametrize("first", [0, 2])
def test_ranks_without_a_link_learn_of_a_failure(transport: str, first: int) -> None:
    """Rank 3 (or 0) waits for a rank that lives, is in no operation, and has no link either."""
    lost = first + 1
    with ranks.started(SCRIPT, 4, transport=transport, args=["unlinked", str(first)]) as job:
        for rank in job[:lost] + job[lost + 1 :]:
            error = report(rank)
            assert (error["error"], error["rank"]) == ("PeerLost", lost), error


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_failed_session_answers_a_knock_with_its_reason(transport: str, tmp_path: Path) -> None:
    """Rank 3 comes to rank 0 later, which could tell nobody when it failed: those that it tells were killed."""
    with ranks.started(SCRIPT, 4, transport=transport, args=["knocks", str(tmp_path)], new=True) as job:
        for rank in job[1:3]:
            _, status = os.waitpid(rank.process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), rank.text()
        for rank in job[1:3]:
            rank.process.kill()
        for rank in (job[0], job[3]):
            error = report(rank)
            assert error["error"] == "PeerLost", error
            assert error["rank"] in (1, 2), error


@pytest.mark.parametrize("when", ["before", "between", "after", "raises"])
def test_a_rank_that_dies_in_init_is_named_at_once(when: str) -> None:
    env = {"SLIPSTREAM_START_TIMEOUT": "600"}
    with ranks.started(SCRIPT, 3, args=["init", when], env=env) as job:
        for rank in (job[0], job[2]):
            error = report(rank)
            assert (error["error"], error["rank"]) == ("PeerLost", 1), error
            assert f"rank 1 (process {job[1].process.pid} on host {HOST}) " in error["text"]
            said = "gave up: ValueError: no such card" if when == "raises" else "ended, or was killed"
            assert said in error["text"]


@pytest.mark.parametrize("way", ["file", "port"])
def test_a_rank_0_that_serves_the_store_and_dies_in_init_is_named(way: str, tmp_path: Path) -> None:
    env = {"SLIPSTREAM_START_TIMEOUT": "600"}
    meet = ranks.meeting_place(way, tmp_path)
    with ranks.started(SCRIPT, 3, args=["serves"], env=env, meet=meet) as job:
        for rank in job[1:]:
            error = report(rank)
            assert (error["error"], error["rank"]) == ("PeerLost", 0), error
            gone = f"rank 0 (process {job[0].process.pid} on host {HOST}), which serves the store, is gone: "
            assert error["text"].startswith(gone), error


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_finishes_early_has_finished(transport: str) -> None:
    with ranks.started(SCRIPT, 2, transport=transport, args=["finished"]) as job:
        error = report(job[0])
        assert job[1].process.wait(LIMIT) == 0
    assert (error["error"], error["rank"]) == ("PeerLost", 1)
    wanted = (
        f"rank 1 (host {HOST}) finished and left the job; rank 0 still waits in "
        "all_reduce(float64, 10 elements, op=sum) #1 (lost_rank.py:"
    )
    assert error["text"].startswith(wanted), error


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("leaves", [0, 1])
def test_a_rank_that_has_finished_before_it_is_needed(transport: str, leaves: int, tmp_path: Path) -> None:
    sign, waits = tmp_path / "ended", 1 - leaves
    arguments = ["finished-early", str(sign), str(leaves)]
    with ranks.started(SCRIPT, 2, transport=transport, args=arguments) as job:
        assert job[leaves].process.wait(LIMIT) == 0, job[leaves].text()
        sign.touch()
        error = report(job[waits])
    assert (error["error"], error["rank"]) == ("PeerLost", leaves)
    assert error["text"].startswith(f"rank {leaves} (host {HOST}) ")
    why = "finished, died or was killed: nothing listens there any more"
    assert f"{why}; rank {waits} still waits in all_reduce(" in error["text"]
    assert " #0 (lost_rank.py:" in error["text"]
    assert "SLIPSTREAM_SECRET" not in error["text"]


@pytest.mark.parametrize("how", ["uncaught", "finally", "earlier"])
def test_survivors_say_what_a_rank_raised(how: str) -> None:
    with ranks.started(SCRIPT, 4, args=["raises", how]) as job:
        errors = [report(rank) for rank in (job[0], job[2], job[3])]
        assert job[1].process.wait(LIMIT) == 1
        assert "ValueError: no such batch" in job[1].text()
    for error in errors:
        assert error["error"] == "PeerLost"
    blamed = [error for error in errors if error["rank"] == 1]
    assert blamed
    left = " and left the job" if how == "finally" else ""
    does = "has called" if how == "earlier" else "(still waits in|has called)"
    text = re.compile(
        rf"rank 1 \(host {re.escape(HOST)}\) raised ValueError at lost_rank\.py:\d+{left}: no such batch; "
        rf"rank \d {does} (all_reduce|barrier)\([^()]*\) #\d+ \(lost_rank\.py:\d+\)"
    )
    for error in blamed:
        assert text.fullmatch(error["text"]), error
    if how != "finally":
        assert len(blamed) == 3


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no file data-\udcff.bin"), "no file data-\\udcff.bin"),
        (Silent(), "its text cannot be made"),
    ],
)
def test_others_learn_what_was_raised_whatever_its_text(error: Exception, told: str) -> None:
    try:
        raise error
    except Exception:
        words = parting_words()
    assert words.encode().decode().endswith(f"and left the job: {told}")


@pytest.mark.slow
def test_the_first_word_about_a_hang_comes_soon() -> None:
    with ranks.started(SCRIPT, 2, args=["slow"]) as job:
        for rank in job:
            assert rank.process.wait(LIMIT) == 0, rank.text()
        assert "has waited 10 s for rank 1" in job[0].text()
