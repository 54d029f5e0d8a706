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


def finished(*arguments: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    """A job that has ended well; its lines are without the ranks' prefixes."""
    command = [sys.executable, "-m", "slipstream", "run", "-np", str(ranks), "--no-prefix", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ})
    assert done.returncode == 0, done.stderr
    return done


def run(*arguments: str, ranks: int = 2) -> list[str]:
    """Runs a job to its end; the lines it printed, sorted."""
    return sorted(finished(*arguments, ranks=ranks).stdout.splitlines())


def found_by_script(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*arguments)]


def test_a_script_needs_only_the_name() -> None:
    """No import of ours, the default rendezvous, and no clean-up: it just ends."""
    assert run("--", sys.executable, "-c", SCRIPT_OF_A_USER) == ["2 [3.0, 3.0, 3.0, 3.0]"] * 2


# gloo's own threads may abort a process that ends without this.
FOR_GLOO = SCRIPT_OF_A_USER.replace('"slipstream"', '"gloo"') + "dist.destroy_process_group()\n"
BOTH = "import slipstream; slipstream.init()" + FOR_GLOO


@pytest.mark.parametrize(
    ("options", "script", "times"),
    [
        (["--wire", "int8", "--encrypt"], FOR_GLOO, 1),
        (["--replace", "gloo"], FOR_GLOO, 0),
        ([], BOTH, 0),  # gloo beside slipstream, on purpose
        (["--encrypt"], BOTH, 1),
    ],
)
def test_a_job_that_communicates_by_gloo_says_so(options: list[str], script: str, times: int) -> None:
    told = finished(*options, "--", sys.executable, "-c", script).stderr
    assert told.count("communicates by gloo in this job, not by slipstream") == times, told
    assert ("--encrypt, --wire have no effect on it" in told) == ("--wire" in options)
    assert ("--replace gloo" in told) == (times > 0)


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


SCRIPT_FOR_DDP = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size, width = dist.get_rank(), dist.get_world_size(), 512
layer = torch.nn.Linear(width, width, bias=False)
torch.nn.init.zeros_(layer.weight)
ddp = DistributedDataParallel(layer)
inputs = torch.randn(3, size, 4, width, generator=torch.Generator().manual_seed(3))
off = 0.0
for step in range(3):
    ddp.zero_grad()
    ddp(inputs[step, rank]).sum().backward()
    wanted = inputs[step].sum(1).mean(0)
    off = max(off, float((layer.weight.grad - wanted).abs().max() / inputs[step].sum(1).abs().max()))
bits = [torch.empty_like(layer.weight) for _ in range(size)]
dist.all_gather(bits, layer.weight.grad)
print(off, all(torch.equal(one, bits[0]) for one in bits), flush=True)
dist.destroy_process_group()
"""


def ddp_of_hosts(folder: Path, *arguments: str) -> tuple[list[str], dict[str, Any]]:
    """Runs a script for gloo's DDP on two ranks, each on a host of its own; its lines, and the summary of the job."""
    script, summary = folder / "ddp.py", folder / "summary.json"
    script.write_text(SCRIPT_FOR_DDP)
    apart = f'SLIPSTREAM_HOST_ID=host-$SLIPSTREAM_RANK exec "{sys.executable}" "{script}"'
    lines = run("--replace", "gloo", "--summary", str(summary), *arguments, "--", "sh", "-c", apart)
    return lines, json.loads(summary.read_text())


def test_an_unmodified_ddp_script_sends_less_by_a_wire(tmp_path: Path) -> None:
    """Of 1 MiB of gradients in each of 3 steps a quarter, within the bounds of int8, and the same on both ranks."""
    lines, summary = ddp_of_hosts(tmp_path, "--wire", "int8")
    assert len(lines) == 2
    for line in lines:
        off, alike = line.split()
        assert 1e-4 < float(off) <= 2 / 127
        assert alike == "True"
    exact = (
        2 * 3 * (1 << 20)
    )  # what both ranks send of it; the start of the job sends more, and never as much
    assert 0.6 * exact < summary["saved_bytes"] < 0.8 * exact, summary["saved_bytes"]


def test_without_replace_gloo_stays_gloo(tmp_path: Path) -> None:
    for found in found_by_script("--", sys.executable, str(SCRIPT), str(tmp_path)):
        for name in ("gloo", "cpu:gloo", "None"):
            assert found[name] == "ProcessGroup", name
        assert (found["slipstream"], found["slipstream, new gloo group"]) == (OURS, "ProcessGroup")
