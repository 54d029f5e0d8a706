"""PyTorch's own suite on slipstream: a few tests of each area always, all of them in the slow run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "torch_suite.py"

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="the suite in PyTorch's wheel imports it")

# One or two quick tests of each area; all run on two ranks, under the name gloo.
CHOSEN = (
    "test_DistributedDataParallelCPU",
    "test_accumulate_gradients_no_sync",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_all_gather_coalesced_with_empty",
    "test_all_gather_complex",
    "test_all_gather_object_subgroup",
    "test_all_reduce_coalesced_sum",
    "test_all_reduce_full_group_max",
    "test_all_reduce_sum_async",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo",
    "test_broadcast_full_group",
    "test_ddp_create_graph",
    "test_destroy_group",
    "test_gather_full_group",
    "test_get_backend",
    "test_get_future",
    "test_irecv",
    "test_isend_torch_profiler",
    "test_monitored_barrier_gloo_rank_0_timeout",
    "test_reduce_max",
    "test_scatter",
    "test_scatter_object_list",
    "test_send_recv_any_source",
    "test_sparse_all_reduce_sum",
    "test_static_graph_api_cpu",
)


def run(
    tmp_path: Path, *arguments: str, limit: float
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    file = tmp_path / "results.json"
    process = subprocess.run(
        [sys.executable, str(SCRIPT), "--json", str(file), *arguments],
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert file.exists(), process.stderr
    return process, json.loads(file.read_text())


def test_a_few_of_each_area_pass(tmp_path: Path) -> None:
    patterns = [word for name in CHOSEN for word in ("--test", name)]
    arguments = ["--np", "2", "--backend", "slipstream-as-gloo", "--timeout", "60", "--verbose", *patterns]
    process, results = run(tmp_path, *arguments, limit=280)
    verdicts = {name: result["verdict"] for name, result in results["slipstream-as-gloo"]["2"].items()}
    assert verdicts == dict.fromkeys(CHOSEN, "passed"), process.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_no_failure_that_gloo_does_not_have(tmp_path: Path, size: int) -> None:
    process, results = run(tmp_path, "--np", str(size), limit=1700)
    assert process.returncode == 0, process.stdout
    counts = {name: len(tests[str(size)]) for name, tests in results.items()}
    assert counts.pop("slipstream-as-mpi") > 20  # of which a part is run: ONLY in torch_suite.py
    assert all(count > 250 for count in counts.values()), counts
