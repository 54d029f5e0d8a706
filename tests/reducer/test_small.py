"""Small all-reduces through real reducers, on loopback: right values, whatever becomes of a reducer."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest

from comm import ranks
from reducer import service
from reducer.service import wait_for
from reducer.test_job import again, environment, reducers

RANK = Path(__file__).with_name("small_rank.py")


@pytest.mark.parametrize(
    ("n", "k"), [(2, 1), (2, 3), (3, 1), (4, 3), pytest.param(8, 3, marks=pytest.mark.slow)]
)
def test_values(tmp_path: Path, n: int, k: int) -> None:
    with reducers(tmp_path, k) as services:
        texts = ranks.run(RANK, n, transport="tcp", args=["values"], env=environment(services))
        assert texts == [""] * n


def test_nothing_to_add(tmp_path: Path) -> None:
    with reducers(tmp_path, 1) as services:
        assert ranks.run(RANK, 2, transport="tcp", args=["empty"], env=environment(services)) == [""] * 2


@pytest.mark.parametrize(("n", "k"), [(2, 1), (3, 3), (4, 1)])
@pytest.mark.parametrize("what", ["scaled", "asynchronous"])
def test_scaling_and_many_at_once(tmp_path: Path, what: str, n: int, k: int) -> None:
    with reducers(tmp_path, k) as services:
        texts = ranks.run(RANK, n, transport="tcp", args=[what], env=environment(services))
        assert texts == [""] * n


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("mode", ["one", "many", "staggered"])
@pytest.mark.parametrize(
    ("n", "k", "lost"), [(2, 1, 0), pytest.param(3, 2, 0, marks=pytest.mark.slow), (3, 2, 1)]
)
def test_a_reducer_is_lost_and_comes_back(
    tmp_path: Path, n: int, k: int, lost: int, mode: str, how: str
) -> None:
    """The second reducer has a part of the larger ones alone."""
    with contextlib.ExitStack() as stack:
        services = [stack.enter_context(service.started(tmp_path)) for _ in range(k)]
        env = environment(services) | {"SLIPSTREAM_REDUCER_HEARTBEAT": "0.5"}
        job = stack.enter_context(ranks.started(RANK, n, transport="tcp", args=["loss", mode], env=env))

        def all_say(word: str) -> bool:
            for rank in job:
                assert rank.process.poll() in (None, 0), rank.text()
            return all(word in rank.text().splitlines() for rank in job)

        wait_for(lambda: all_say("used"), "work with all reducers")
        victim = services[lost]
        victim.process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        wait_for(lambda: all_say("lost"), "the loss")
        # Of this one; on a busy machine another one may seem lost before.
        warning = f"reducer 127.0.0.1:{victim.port} is lost"
        wait_for(lambda: all(warning in rank.text() for rank in job), "the warning")
        if how == "kill":
            victim.process.wait()
            again(stack, tmp_path, victim.port)
        else:
            victim.process.send_signal(signal.SIGCONT)
        wait_for(lambda: all_say("back"), "the return")
        for rank in job:
            assert rank.process.wait(service.LIMIT) == 0, rank.text()
