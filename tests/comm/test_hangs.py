"""A rank that does not take part: everybody learns who it is, what it did last and what it does now."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("hang_rank.py")
N = 4
CULPRIT = f"rank {N - 1} "
MISSING = "has not called #4 of this group: its last one there is barrier() #3, done "
NOWHERE = "is in no operation"


def printed(rank: ranks.Rank) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(x for x in rank.text().splitlines() if x.startswith("{")))
    return found


def wait_for(condition: Any, job: list[ranks.Rank]) -> None:
    deadline = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < deadline, "\n".join(rank.text() for rank in job)
        time.sleep(0.01)  # a poll of files that other processes write


@pytest.mark.parametrize(
    ("what", "transport", "now"),
    [
        ("skips", "tcp", NOWHERE),
        ("skips", "shm", NOWHERE),
        ("blocked", "mixed", NOWHERE),
        (
            "other-group",
            "tcp",
            f"broadcast(float64, 7 elements, root=0) #0 of the group of ranks 0, {N - 1} for rank 0",
        ),
        (
            "behind",
            "shm",
            "recv(from rank 0, float64, 5 elements) #0 of the group of ranks 0, 1, 2, 3 for rank 0",
        ),
    ],
)
def test_every_rank_learns_who_is_missing_and_what_it_does(what: str, transport: str, now: str) -> None:
    env = {"SLIPSTREAM_TIMEOUT": "4"}
    with ranks.started(SCRIPT, N, transport=transport, args=[what], env=env) as job:
        wait_for(lambda: all("operations, newest first" in rank.text() for rank in job), job)
        for rank in job[:-1]:
            rank.process.wait(20)
        for rank in job[:-1]:
            error = printed(rank)
            assert CULPRIT in error["text"]
            assert re.match(r"rank \d has waited \d.* s in all_reduce\(float32, 1048576 ", error["text"])
            assert " Timed out on rank " in error["text"]
            assert " (SLIPSTREAM_TIMEOUT, or `slipstream run --timeout`, sets the limit)" in error["text"]
            assert MISSING in error["text"]
            assert now in error["text"]
            assert f"rank {rank.number} (host " in error["report"]
            assert "waits for no operation; the session has failed: " in error["report"]
            assert (
                "all_reduce(float32, 1048576 elements, op=sum) #4 of ranks 0, 1, 2, 3: failed after"
                in error["report"]
            )
        for rank in job:
            text = rank.text()
            assert text.count("operations, newest first") == 1 + text.count('{"text"')
            lines = [x for x in text.splitlines() if "all_reduce(float32, 10 elements, op=sum) #" in x]
            mine = [x for x in lines if not x.startswith("{")]
            assert all(x.startswith(f"slipstream: rank {rank.number}: ") for x in mine)
            assert any("done after" in x for x in mine)
        for rank in job[:-1]:  # though in a ring, only its neighbours wait for the missing rank
            mine = [x for x in rank.text().splitlines() if not x.startswith("{")]
            assert any(CULPRIT in x and MISSING in x for x in mine)
            assert "waits: all_reduce(float32, 1048576 elements, op=sum) #4 has waited" in rank.text()


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_ranks_that_both_send_first_learn_the_cure(transport: str) -> None:
    script = Path(__file__).with_name("both_send_rank.py")
    texts = ranks.run(script, 2, transport=transport, env={"SLIPSTREAM_TIMEOUT": "3"})
    assert any(
        f"in send(to rank {1 - rank}, tag=7, float32, 4000000 elements) #0" in text
        and "where both send first, one must receive first, or send with async_op=True" in text
        for rank, text in enumerate(texts)
    ), texts


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_ranks_that_both_receive_first_learn_the_cure(transport: str) -> None:
    script = Path(__file__).with_name("both_receive_rank.py")
    texts = ranks.run(script, 2, transport=transport, env={"SLIPSTREAM_TIMEOUT": "3"})
    assert any(
        f"in recv(from rank {1 - rank}, tag=7, float32, 1000 elements) #0" in text
        and "where both receive first, one must send first" in text
        for rank, text in enumerate(texts)
    ), texts
