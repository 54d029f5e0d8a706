"""The example of scikit-learn: it learns on any number of workers, which end with the same model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from comm import ranks

pytest.importorskip("sklearn")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sklearn_digits.py"
# `partial_fit` counts steps: equal models on all ranks are what the averages leave, not what it makes.
EQUAL = f"""
import runpy
made = runpy.run_path({str(EXAMPLE)!r})
import numpy, slipstream
slipstream.init()
from sklearn.linear_model import SGDClassifier
x = numpy.random.default_rng(slipstream.rank()).normal(size=(40, 5))
model = SGDClassifier(random_state=0).partial_fit(x, x[:, 0] > 0, classes=[False, True])
before = slipstream.all_gather(model.coef_)
made["average"](model)
after = slipstream.all_gather(model.coef_)
assert (before[0] != before[1]).any() and (after == after[0]).all()
assert numpy.allclose(after[0], before.mean(axis=0)), (before, after)
"""


@pytest.mark.parametrize("size", [1, 2, 3])
def test_it_learns(size: int) -> None:
    command = [sys.executable, "-m", "slipstream", "run", "-np", str(size), "--no-prefix", "--"]
    output = subprocess.check_output([*command, sys.executable, str(EXAMPLE)], text=True)
    assert float(ranks.marked("accuracy: ", output)) >= 0.93


def test_the_workers_end_with_one_model(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(EQUAL)
    ranks.run(script, 2, new=True)
