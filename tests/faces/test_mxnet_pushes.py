"""Operations that MXNet's engine runs: values, order, errors, and processes that end or fork amid them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from comm import ranks

if importlib.util.find_spec("mxnet") is None:
    pytest.skip("MXNet is not installed: make test-mxnet", allow_module_level=True)

SCRIPT = Path(__file__).parent / "mxnet_push_rank.py"


def run(mode: str, size: int, **options: object) -> list[str]:
    return ranks.run(SCRIPT, size, args=[mode], new=True, **options)  # type: ignore[arg-type]


def all_done(outputs: list[str]) -> None:
    assert all(output.endswith("done\n") for output in outputs), outputs


@pytest.mark.parametrize(("size", "transport"), [(1, "shm"), (2, "shm"), (3, "mixed"), (4, "shm")])
def test_values(size: int, transport: str) -> None:
    all_done(run("values", size, transport=transport))


@pytest.mark.parametrize(
    "mode", ["one_layout", "same_memory", "at_once", "mismatches", "training_mismatch", "left"]
)
def test_two_ranks(mode: str) -> None:
    all_done(run(mode, 2))


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_compute_in_other_orders(size: int) -> None:
    all_done(run("order", size))


@pytest.mark.parametrize("mode", ["forked", "exits"])
@pytest.mark.parametrize("size", [1, 3])
def test_a_process_forks_or_ends_amid_operations(mode: str, size: int) -> None:
    all_done(run(mode, size))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_killed_rank_is_named(size: int) -> None:
    *others, _ = run("killed", size)
    for output in others:
        named, text = ranks.marked("raised ", output).split(" ", 1)
        assert int(named) == size - 1
        assert f"rank {size - 1}" in text


def test_an_array_that_carries_an_error_of_mxnet_ends_the_job() -> None:
    outputs = run("broken_input", 2)
    all_done(outputs)
    told = ranks.marked("raised ", outputs[0])
    assert told.startswith("Aborted ")
    assert "rank 1 could not run allreduce 'broken'" in told
    assert "MXNetError" in ranks.marked("raised ", outputs[1])


def test_a_rank_that_ends_by_an_exception_does_not_wait_for_the_others() -> None:
    with ranks.started(SCRIPT, 2, args=["dies_of_an_exception"], new=True) as (first, second):
        assert first.process.wait(60) == 1
        assert second.process.wait(60) == 0
        assert "a mistake of the program" in first.text()
        assert "KeyError" in ranks.marked("raised ", second.text())


def test_the_engine_without_threads_goes_the_blocking_way() -> None:
    program = (
        "import slipstream.mxnet as hvd, mxnet as mx; from slipstream.faces.mxnet import pushes\n"
        "hvd.init(); print(hvd.allreduce(mx.nd.ones(2), average=False).asnumpy(), pushes.can_push())"
    )
    command = [sys.executable, "-m", "slipstream", "run", "-np", "2", "--no-prefix", "--"]
    found = subprocess.check_output(
        [*command, sys.executable, "-c", program],
        text=True,
        env={**os.environ, "MXNET_ENGINE_TYPE": "NaiveEngine"},
    )
    assert found == "[2. 2.] False\n" * 2


def test_another_release_of_mxnet_is_refused() -> None:
    """`mxnet_prepare` says what is wrong: of a library that is not there, and of one that has not the functions."""
    from slipstream import _core

    assert "is not loaded" in _core.mxnet_prepare("/nowhere/libmxnet.so")
    assert "MXNet has no MXGetVersion" in _core.mxnet_prepare("libc.so.6")
