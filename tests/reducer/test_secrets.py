"""A rank whose secret for the reducers is another one."""

from __future__ import annotations

from pathlib import Path

from comm import ranks
from reducer.test_job import environment, reducers

RANK = Path(__file__).with_name("wait_rank.py")


def test_a_rank_that_a_reducer_refuses_says_so_once(tmp_path: Path) -> None:
    with reducers(tmp_path, 1) as services:
        other = {1: {"SLIPSTREAM_REDUCER_SECRET": "cd" * 32}}
        env = environment(services)
        with ranks.started(RANK, 2, transport="tcp", args=["400000"], env=env, envs=other) as job:
            for rank in job:
                rank.process.wait(100)
                assert rank.process.returncode == 0, rank.text()
            (said,) = (line for line in job[1].text().splitlines() if "does not know our secret" in line)
            assert f"reducer 0 at 127.0.0.1:{services[0].port} " in said
            assert (
                "does not know our secret: this rank needs the secret that the reducer was started with: "
                "SLIPSTREAM_REDUCER_SECRET, or its file; the workers go on without it" in said
            )
            assert "SLIPSTREAM_SECRET" not in said
