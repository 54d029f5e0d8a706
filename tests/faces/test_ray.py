"""Collective groups of Ray's actors on slipstream, in a local Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray.util.collective.backend_registry")

import slipstream.ray

SCRIPT = Path(__file__).parent / "ray_actors.py"


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_actors_communicate(size: int) -> None:
    kinds = ["torch"] if size == 2 else []
    done = subprocess.run([sys.executable, str(SCRIPT), str(size), *kinds], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is well" in done.stdout


def test_a_group_of_one_needs_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    monkeypatch.setenv("SLIPSTREAM_SECRET", "00" * 32)
    group = slipstream.ray.SlipstreamGroup(1, 0, "alone")
    x = np.ones(2)
    group.allreduce([x])
    group.barrier()
    assert x.tolist() == [1, 1]
    with pytest.raises(ValueError, match="one tensor of each actor, not 2"):
        group.allreduce([x, x])
    group.destroy_group()
