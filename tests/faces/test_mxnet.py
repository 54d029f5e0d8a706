"""Horovod's API for MXNet: operations, training in each way, errors, and the example. `make test-mxnet` runs them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from comm import ranks

if importlib.util.find_spec("mxnet") is None:
    pytest.skip("MXNet is not installed: make test-mxnet", allow_module_level=True)

SCRIPT = Path(__file__).parent / "mxnet_rank.py"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mxnet_digits.py"


@pytest.mark.parametrize(
    "mode", ["operations", "deferred", "training", "store", "mistakes_end_nothing", "process_sets"]
)
@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "mixed")])
def test_ranks(mode: str, size: int, transport: str) -> None:
    for output in ranks.run(SCRIPT, size, transport=transport, args=[mode], new=True):
        assert output.endswith("done\n")


def test_mistakes() -> None:
    for output in ranks.run(SCRIPT, 2, args=["mistakes"], new=True):
        raised = [line for line in output.splitlines() if line.startswith("raised ")]
        assert len(raised) == 3
        assert "takes MXNet's NDArrays, not ndarray" in raised[0]
        assert 'not csr: use array.tostype("default")' in raised[1]
        assert "2" in raised[2]
        assert "3" in raised[2]


@pytest.mark.parametrize("size", [2, 3])
def test_a_lost_rank_is_named(size: int) -> None:
    for output in ranks.run(SCRIPT, size, args=["lost"], new=True)[:-1]:
        assert ranks.marked("raised ", output).startswith("PeerLost: ")
        assert f"rank {size - 1}" in output


def test_unmodified_horovod_programs_find_it(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        "import horovod.mxnet as hvd, mxnet as mx\n"
        "from horovod.mxnet.mpi_ops import allreduce\n"
        "hvd.init()\nprint('sum', int(allreduce(mx.nd.ones(1), average=False).asscalar()))\n"
    )
    command = [sys.executable, "-m", "slipstream", "run", "-np", "2", "--horovod", "--no-prefix", "--"]
    assert subprocess.check_output([*command, sys.executable, str(script)], text=True) == "sum 2\nsum 2\n"


def train(size: int, folder: Path, *options: str) -> tuple[list[float], float]:
    """The example's losses and accuracy."""
    losses = folder / f"{size}.json"
    command = [
        sys.executable,
        "-m",
        "slipstream",
        "run",
        "-np",
        str(size),
        "--no-prefix",
        "--",
        sys.executable,
    ]
    output = subprocess.check_output(
        [*command, str(EXAMPLE), "--loss-file", str(losses), *options], text=True
    )
    return json.loads(losses.read_text()), float(ranks.marked("accuracy: ", output))


def test_any_number_of_workers_learns_the_same(tmp_path: Path) -> None:
    options = ("--epochs", "2", "--batch-size", "50")  # the last batch is smaller
    alone, _ = train(1, tmp_path, *options)
    together, _ = train(3, tmp_path, *options)
    assert together == pytest.approx(alone, rel=1e-3)
    by_store, _ = train(2, tmp_path, *options, "--kvstore")
    assert by_store == pytest.approx(alone, rel=1e-3)
    assert alone[-1] < alone[0] / 2
