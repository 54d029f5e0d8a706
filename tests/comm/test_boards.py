"""Small operations between ranks of one host, which go over a board instead of in messages."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("boards_rank.py")


@pytest.mark.parametrize("n", [2, 3, 4])
def test_values(n: int) -> None:
    ranks.run(SCRIPT, n, args=["values", "-"])


@pytest.mark.parametrize("case", ["ragged", "late", "mixed", "forked", "leaves", "dropped", "held"])
def test_ranks_that_call_each_in_its_own_way(case: str) -> None:
    ranks.run(SCRIPT, 3, args=[case, "-"])


@pytest.mark.parametrize("what", ["files", "addresses"])
def test_a_rank_that_cannot_take_the_memory_stays_off_the_board(what: str) -> None:
    ranks.run(SCRIPT, 3, args=["poor", what])


@pytest.mark.parametrize("free", range(6))
def test_a_link_that_a_board_could_not_have_is_made_when_it_is_needed(free: int) -> None:
    ranks.run(SCRIPT, 4, args=["dear", str(free)], env={"SLIPSTREAM_TIMEOUT": "20"})


def test_groups_and_threads() -> None:
    ranks.run(SCRIPT, 4, args=["groups", "-"])


def test_an_interrupted_call_goes_on(tmp_path: Path) -> None:
    ranks.run(SCRIPT, 2, args=["interrupted", str(tmp_path)])


@pytest.mark.parametrize("off", [0, 1])
def test_a_rank_may_stay_off_the_boards(off: int) -> None:
    ranks.run(SCRIPT, 3, args=["off", "-"], envs={off: {"SLIPSTREAM_BOARD": "off"}})


@pytest.mark.parametrize("transport", ["tcp", "mixed"])
def test_without_shared_memory_there_is_none(transport: str) -> None:
    ranks.run(SCRIPT, 2, transport=transport, args=["apart", "-"])


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("shape", ("shape=2x3", "shape=3x2")),
        ("dtype", ("float32", "float64")),
        ("op", ("op=max", "op=sum")),
        ("kind", ("barrier(", "all_reduce(")),
        ("name", ("name='one'", "name='other'")),
        ("root", ("root=0", "root=1")),
        ("ragged", ("gather", "all_to_all")),
        ("late", ("4 elements", "3 elements")),
    ],
)
def test_ranks_that_differ_read_both_sides(what: str, words: tuple[str, str]) -> None:
    for text in ranks.run(SCRIPT, 2, args=["differs", what]):
        error = ranks.marked("Mismatch: ", text)
        assert all(word in error for word in words), error


def test_a_call_that_waits_too_long_names_whom_it_waits_for() -> None:
    for text in ranks.run(SCRIPT, 2, args=["times_out", "-"], env={"SLIPSTREAM_TIMEOUT": "4"}):
        error = ranks.marked("Timeout: ", text)
        assert "all_reduce(name='lonely', float64, 3 elements, op=sum) #" in error
        assert "rank 1" in error


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "died or was killed"),
        (signal.SIGSTOP, "has sent nothing for 3 s (SLIPSTREAM_HEARTBEAT + 2 s)"),
    ],
)
def test_a_peer_that_is_gone_is_named(tmp_path: Path, number: signal.Signals, words: str) -> None:
    args, env = ["lost", str(tmp_path)], {"SLIPSTREAM_HEARTBEAT": "1"}
    with ranks.started(SCRIPT, 2, args=args, env=env) as (waiting, gone):
        said = tmp_path / "pid"
        while not (said.exists() and said.read_text()):
            assert gone.process.poll() is None, gone.text()
            time.sleep(0.01)
        os.kill(int(said.read_text()), number)
        waiting.process.wait(60)
        error = ranks.marked("PeerLost: ", waiting.text())
    assert words in error
    assert "still waits in all_reduce(float64, 3 elements, op=sum) #" in error
