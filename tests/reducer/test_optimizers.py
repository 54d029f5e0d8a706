"""Optimizers of the Horovod API beside a reducer, which serves one of them: nothing mixes with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks
from comm.test_hierarchy import on_hosts
from reducer.test_job import environment, reducers

RANK = Path(__file__).with_name("optimizers_rank.py")


@pytest.mark.parametrize(
    "mode",
    [
        "two",
        pytest.param("calls", marks=pytest.mark.slow),
        pytest.param("again", marks=pytest.mark.slow),
        "join",
    ],
)
def test_optimizers(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("torch")
    with reducers(tmp_path, 1) as services:
        ranks.run(RANK, 3, transport="mixed", args=[mode], env=environment(services), envs=on_hosts(1, 1, 1))
