"""Every public function of `slipstream`, its faces and `slipstream.lab` has an example, which is run."""

from __future__ import annotations

import importlib
import inspect
import os
import shutil
from pathlib import Path

import pytest

import slipstream
from docs.examples_rank import objects, run_examples
from docs.stage import Stage

RANK = Path(__file__).with_name("examples_rank.py")
CAN_MAKE_LABS = os.geteuid() == 0 and shutil.which("tc") is not None
OUTSIDE_A_JOB = {"run"}  # it starts a job
NO_EXAMPLE = {"LaneStatistics", "LinkStatistics", "Op"}  # what `link_statistics` returns


FRAMEWORKS = ["slipstream.torch", "slipstream.torch.elastic", "slipstream.tensorflow", "slipstream.keras"]


@pytest.mark.parametrize("module", ["slipstream", *FRAMEWORKS, "slipstream.lab"])
def test_everything_public_has_an_example(module: str) -> None:
    if module in FRAMEWORKS:
        pytest.importorskip(module.split(".")[1])
    found = objects(importlib.import_module(module))
    assert len(found) > 3
    missing = [
        name for name, one in found if name not in NO_EXAMPLE and ">>>" not in (inspect.getdoc(one) or "")
    ]
    assert missing == []


@pytest.mark.parametrize("module", ["slipstream", *FRAMEWORKS])
def test_examples_print_what_they_show(module: str, tmp_path: Path) -> None:
    if module in FRAMEWORKS:
        pytest.importorskip(module.split(".")[1])
    names = [name for name, _ in objects(importlib.import_module(module)) if name not in OUTSIDE_A_JOB]
    command = f"slipstream run -np 2 -- python {RANK} {module} {' '.join(names)}"
    code, output = Stage(tmp_path, None).run(command)
    assert code == 0, output


def test_examples_outside_a_job() -> None:
    assert run_examples(slipstream, 0, sorted(OUTSIDE_A_JOB)) == 0


@pytest.mark.skipif(not CAN_MAKE_LABS, reason="a lab needs root and iproute2")
def test_examples_of_the_lab() -> None:
    lab = importlib.import_module("slipstream.lab")
    assert run_examples(lab, 0, list(lab.__all__)) == 0
