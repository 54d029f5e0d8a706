"""`hvd.init` and `hvd.shutdown`, again and again: what a job had is given back when it is left, not some time later."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from comm import ranks


def test_200_times_init_and_shutdown_at_4_ranks_leave_nothing() -> None:
    ranks.run(
        Path(__file__).with_name("again_rank.py"), 4, env={"PYTHONPATH": str(Path(__file__).parents[1])}
    )
