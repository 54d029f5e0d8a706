"""`slipstream run` with scripts for torch.distributed, and --replace: scripts for gloo, served by slipstream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

SCRIPT = Path(__file__).with_name("replace_rank.py")
OURS = "SlipstreamGroup"
SCRIPT_OF_A_USER = """
import torch, torch.distributed as dist
dist.init_process_group("slipstream")
x = torch.ones(4) * (dist.get_rank() + 1)
dist.all_reduce(x)
print(dist.get_world_size(), x.tolist(), flush=True)
"""


def run(*arguments: str, ranks: int = 2) -> list[str]:
    """Runs a job to its end; the lines it printed, sorted, without the ranks' prefixes."""
    command = [sys.executable, "-m", "slipstream", "run", "-np", str(ranks), "--no-prefix", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ})
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def found_by_script(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*arguments)]


def test_a_script_needs_only_the_name() -> None:
    """No import of ours, the default rendezvous, and no clean-up: it just ends."""
    assert run("--", sys.executable, "-c", SCRIPT_OF_A_USER) == ["2 [3.0, 3.0, 3.0, 3.0]"] * 2


def test_gloo_is_replaced(tmp_path: Path) -> None:
    answers = found_by_script("--replace", "gloo", "--", sys.executable, str(SCRIPT), str(tmp_path))
    assert len(answers) == 2
    for found in answers:
        assert found["size"] == 2
        for name in ("gloo", "cpu:gloo", "None", "slipstream"):
            for kind in ("", ", new group", ", new gloo group"):
                assert found[name + kind] == OURS, name + kind
        assert found["mesh"] == OURS
        assert (found["gloo says"], found["slipstream says"]) == ("gloo", "slipstream")
    barriers = sorted(found["barrier"] for found in answers)
    assert barriers[0] == ""
    assert "1" in barriers[1]
    assert "no error" not in barriers[1]


def test_without_replace_gloo_stays_gloo(tmp_path: Path) -> None:
    for found in found_by_script("--", sys.executable, str(SCRIPT), str(tmp_path)):
        for name in ("gloo", "cpu:gloo", "None"):
            assert found[name] == "ProcessGroup", name
        assert (found["slipstream"], found["slipstream, new gloo group"]) == (OURS, "ProcessGroup")
