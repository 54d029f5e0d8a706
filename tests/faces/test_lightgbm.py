"""LightGBM over slipstream: equal models, errors, and the example."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from comm import ranks

pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")

import slipstream
import slipstream.lightgbm

SCRIPT = Path(__file__).parent / "lightgbm_rank.py"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "lightgbm_digits.py"


def models(text: str) -> list[tuple[str, float]]:
    """The digest and the accuracy of each model that a rank has printed."""
    lines = [line.split() for line in text.splitlines() if line.startswith("model ")]
    return [(digest, float(accuracy)) for _, digest, accuracy in lines]


@pytest.mark.parametrize("learner", ["data", "voting"])
@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "mixed")])
def test_all_ranks_have_the_same_model(learner: str, size: int, transport: str) -> None:
    outputs = ranks.run(SCRIPT, size, transport=transport, args=[learner], new=True)
    found = [models(output) for output in outputs]
    assert len(found[0]) == 2
    assert all(one == found[0] for one in found)
    if learner == "data":  # the learner "voting" varies from run to run, with LightGBM's own sockets too
        assert found[0][0] == found[0][1]
    assert found[0][0][1] > 0.8


@pytest.mark.parametrize("size", [2, 3])
def test_a_lost_rank_ends_the_training_of_all(size: int) -> None:
    outputs = ranks.run(SCRIPT, size, args=["lost"], new=True)
    for output in outputs[:-1]:
        assert "LightGBM told" in output
        raised = ranks.marked("raised ", output)
        assert raised.startswith("LightGBMError: "), raised
        assert f"rank {size - 1}" in raised
        assert len(models(output)) == 1


def test_an_interrupted_rank_ends_the_training_of_all() -> None:
    first, second = ranks.run(SCRIPT, 2, args=["interrupted"], new=True)
    assert ranks.marked("raised ", first) == "KeyboardInterrupt from LightGBMError"
    told = ranks.marked("raised ", second)
    assert told.startswith("Aborted: "), told
    assert "rank 0 aborted the job: its training by LightGBM ended: KeyboardInterrupt" in told, told
    assert len(models(first)) == len(models(second)) == 1


def test_a_rank_that_leaves_its_block_by_an_exception_is_not_waited_for() -> None:
    first, second = ranks.run(SCRIPT, 2, args=["caught"], new=True)
    both, alone = (line for line in first.splitlines() if line.startswith("raised "))
    assert both == "raised ValueError: this trial failed"
    assert second.count(both) == 2
    assert alone.startswith("raised Mismatch: ")
    assert "rank 1 (host " in alone
    assert "LightGBM: the end of the block" in alone
    assert "the same parameters, iterations and callbacks on all ranks" in alone


def test_training_without_the_network_is_refused() -> None:
    for output in ranks.run(SCRIPT, 2, args=["outside"], new=True):
        assert output.count("raised LightGBM would train with num_machines, but without its network") == 2
        assert "LightGBM has trained nothing in this block" in output
        assert "is left in another thread than the one that entered it" in output
        assert len(models(output)) == 1


def test_a_group_trains_alone() -> None:
    outputs = ranks.run(SCRIPT, 3, args=["halves"], new=True)
    first, second, third = (models(output) for output in outputs)
    assert first == second != third
    assert ["not alone" in output for output in outputs] == [True, True, False]


def test_the_network_is_the_threads() -> None:
    first, second = (models(text) for text in ranks.run(SCRIPT, 2, args=["thread"], new=True))
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_wrong_use() -> None:
    with pytest.raises(ValueError, match="tree_learner must be one of data, voting, not 'serial'"):
        slipstream.lightgbm.network("serial")
    with pytest.raises(TypeError, match=r"group must be a slipstream\.Group"):
        slipstream.lightgbm.network(group=[0, 1])  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 2])
def test_the_example_learns(size: int) -> None:
    command = [sys.executable, "-m", "slipstream", "run", "-np", str(size), "--no-prefix", "--"]
    output = subprocess.check_output([*command, sys.executable, str(EXAMPLE), "--trees", "10"], text=True)
    assert float(ranks.marked("accuracy: ", output)) > 0.9
