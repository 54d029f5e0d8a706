"""A rank whose secret for the reducers is another one."""

from __future__ import annotations

from pathlib import Path

from comm import ranks
from reducer.service import Service
from reducer.test_job import environment, reducers

RANK = Path(__file__).with_name("wait_rank.py")


def said(one: Service) -> tuple[list[str], str]:
    """What each of two ranks of a job says, the second with another secret; and all that anybody said, for people."""
    env, other = environment([one]), {1: {"SLIPSTREAM_REDUCER_SECRET": "cd" * 32}}
    with ranks.started(RANK, 2, transport="tcp", args=["400000"], env=env, envs=other) as job:
        for rank in job:
            rank.process.wait(100)
        texts = [rank.text() for rank in job]
        everything = "\n".join(
            [
                *(f"--- rank {r}\n{text}" for r, text in enumerate(texts)),
                f"--- reducer\n{one.log.read_text()}",
            ]
        )
        assert [rank.process.returncode for rank in job] == [0, 0], everything
    return texts, everything


def test_a_rank_that_a_reducer_refuses_says_so_once(tmp_path: Path) -> None:
    with reducers(tmp_path, 1) as (one,):
        for _ in range(3):
            (first, second), everything = said(one)
            if "the job starts without it" not in first:
                break  # else the reducer was too busy to answer rank 0 in time: rank 1 has not been told of it
        found = [line for line in second.splitlines() if "does not know our secret" in line]
        assert len(found) == 1, everything
        assert f"reducer 0 at 127.0.0.1:{one.port} " in found[0], everything
        assert (
            "does not know our secret: this rank needs the secret that the reducer was started with: "
            "SLIPSTREAM_REDUCER_SECRET, or its file; the workers go on without it" in found[0]
        ), everything
        assert "SLIPSTREAM_SECRET" not in found[0], everything
