"""The command from end to end, on ranks of this host."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reducer import service
from reducer.service import wait_for
from slipstream.bench.train.contenders import NAMES, mpi_ranks
from slipstream.bench.train.workloads import find_shapes
from slipstream.cli.bench_train import CONTENDERS, train

QUICK = [
    "--model",
    "tiny",
    "-np",
    "2",
    "--compute-time",
    "20ms",
    "--repeats",
    "2",
    "--steps",
    "2",
    "--limit",
    "120",
]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(train, [*QUICK, *arguments])


def record(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_against_gloo_with_a_delay() -> None:
    result = run(
        *("--against", "gloo,slipstream-horovod,mpi", "--optimizer", "sgd", "--bucket-mb", "0.05"),
        *("--encrypt", "--json"),
    )
    assert result.exit_code == 0, result.output
    found = record(result)
    assert found["bytes"] == 4 * 28_032
    assert found["encrypted"]
    assert "MPI" in found["missing"]["mpi"]
    rows = found["contenders"]
    assert set(rows) == {"plain", "slipstream", "gloo", "slipstream-horovod"}
    for name, row in rows.items():
        assert row["wrong"] == 0, name
        assert len(row["step"]["samples"]) == 4
        assert len(row["communication"]["samples"]) == 2
        assert min(row["step"]["samples"]) > 0.02
    assert set(rows["slipstream"]["ratio"]) == {"gloo", "slipstream-horovod"}
    assert rows["slipstream"]["buckets"] == rows["gloo"]["buckets"]
    assert len(rows["gloo"]["buckets"]) > 1
    assert sum(rows["gloo"]["buckets"]) == found["bytes"]


def test_beside_a_reducer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_TRANSPORT", "tcp")  # as if each rank had a host
    monkeypatch.setenv("SLIPSTREAM_REDUCER_SECRET", service.SECRET.hex())
    with service.started(tmp_path) as reducer:
        where = f"127.0.0.1:{reducer.port}"
        prices = ["--worker-price", "30", "--reducer-price", "0.7"]
        result = run("--against", "slipstream-ring", "--reducers", where, *prices, "--json")
        assert result.exit_code == 0, result.output
        wait_for(lambda: reducer.metrics()["jobs"] == 0, "the end of the job")
        assert reducer.metrics()["received_bytes_total"] > 0
    found = record(result)
    assert found["reducers"] == {where: True}
    rows = found["contenders"]
    assert {name: row["wrong"] for name, row in rows.items()} == dict.fromkeys(rows, 0)
    assert set(rows["slipstream"]["relative_cost"]) == {"slipstream-ring"}
    # One host, so that a reducer's price is 0.7 of 30.7.
    cost = {name: row["cost_per_1000_steps"] / row["step"]["median"] for name, row in rows.items()}
    assert cost["slipstream"] / cost["slipstream-ring"] == pytest.approx(30.7 / 30)


@pytest.mark.parametrize(("compute", "contender", "wrong"), [("delay", "slipstream", 1), ("real", "gloo", 2)])
def test_an_injected_error_is_reported(compute: str, contender: str, wrong: int) -> None:
    result = run("--compute", compute, "--inject-error", contender, "--json")
    assert result.exit_code == 1, result.output
    assert f"WRONG GRADIENTS: {contender}: {wrong}" in result.stderr
    found = {name: row["wrong"] for name, row in record(result)["contenders"].items()}
    # Of real compute a sample and the sum of the gradient are checked, and both are off.
    assert found == {"plain": 0, "slipstream": 0, "gloo": 0} | {contender: wrong}


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI")
def test_horovod_where_its_module_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = tmp_path / "horovod"
    stand_in.mkdir()
    (stand_in / "__init__.py").write_text("")
    (stand_in / "torch.py").write_text("from slipstream.torch import *\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.syspath_prepend(tmp_path)
    assert mpi_ranks(["horovod"])
    result = run("--against", "horovod", "--json")
    assert result.exit_code == 0, result.output
    rows = record(result)["contenders"]
    assert rows["horovod"]["wrong"] == 0
    assert len(rows["horovod"]["buckets"]) == 28


def test_ranks_that_fail_end_the_command() -> None:
    result = run("--model", "no_such_module:model", "--json")
    assert result.exit_code == 2
    assert "Error: the ranks" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--against", "gloo,mpich"], "no contender mpich"),
        (["--model", "alexnet"], "MODULE:FUNCTION"),
        (["--compute-time", "soon"], "is not a time"),
        (["--compute-time", "50"], "'50' is not a time: it has no unit; write 50ms or 50s"),
        (["--link-rate", "fast"], "is not a rate"),
        (["--plot", "step.jpg"], "ends in .svg or .png"),
        (["-H", "a:1", "--hostfile", "hosts"], "not both"),
        (["-H", "localhost:1"], "do not fit"),
        (["--hostfile", "no-such-file"], "cannot read"),
    ],
)
def test_what_is_asked_wrongly_is_refused(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code in (1, 2)
    assert words in result.output


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    result = run()
    assert result.exit_code == 1
    assert "PyTorch is missing" in result.stderr
    assert "pip install torch" in result.stderr


def test_a_delay_of_an_unknown_model_must_be_given() -> None:
    result = CliRunner().invoke(train, ["--model", "mine:make", "-np", "2"])
    assert result.exit_code == 2
    assert "--compute-time" in result.output


def test_all_contenders_can_be_asked_for() -> None:
    assert {"plain", "slipstream", *CONTENDERS} == set(NAMES)


def test_shapes_take_no_memory() -> None:
    shapes = find_shapes("resnet50")
    assert sum(shapes.nbytes()) == 4 * 25_557_032
    assert len(shapes.buffers) == 3 * 53
    assert all(buffer.is_meta for _, buffer in shapes.buffers)
