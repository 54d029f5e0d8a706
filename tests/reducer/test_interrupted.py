"""Calls beside reducers that an exception of a signal handler breaks off: memory and values stay right."""

from __future__ import annotations

import signal
from pathlib import Path

from comm import ranks
from reducer.test_job import environment, reducers

RANK = Path(__file__).parents[1] / "comm" / "interrupted_rank.py"


def test_an_interrupted_call_harms_neither_memory_nor_values(tmp_path: Path) -> None:
    args = [str(tmp_path), str(int(signal.SIGALRM)), "goes on"]
    with reducers(tmp_path, 2) as services:
        ranks.run(RANK, 2, transport="tcp", args=args, env=environment(services))
        assert all(one.metrics()["works_total"] > 0 for one in services)
