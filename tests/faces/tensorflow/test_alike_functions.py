"""Functions of one name are told apart by where the program defines them, in a step that fails between two of them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import slipstream.tensorflow as hvd  # noqa: E402
from faces.rank_jobs import Ranks  # noqa: E402
from faces.tensorflow.failing_steps import until_the_end  # noqa: E402
from slipstream.faces.tensorflow import naming  # noqa: E402


class Called:
    def __call__(self, x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)


class Other(Called):
    pass


def one() -> Any:
    def step(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    return step


def another() -> Any:
    def step(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    return step


def two_of(kind: str) -> tuple[Any, Any]:
    if kind == "lambdas":
        return lambda x: hvd.allreduce(x, op=hvd.Sum), lambda x: hvd.allreduce(x, op=hvd.Sum)
    return (Called(), Other()) if kind == "objects" else (one(), another())


def check(kind: str) -> str:
    """Rank 0 fails between the two in the third step, and goes on with the first one of the next step."""
    first, second = (tf.function(one, autograph=False) for one in two_of(kind))

    def call(number: int) -> Any:
        found = first(tf.constant(float(number))).numpy()
        if number == 3 and hvd.rank() == 0:
            raise ValueError("between the two")
        assert second(tf.constant(number + 0.5)).numpy() == (number + 0.5) * hvd.size()
        return found

    return until_the_end(call)


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(x: Any) -> Any:
        return function(x)

    return wrapper


def executed(file: str) -> Any:
    names: dict[str, Any] = {}
    exec(compile("def step(x):\n    return x\n", file, "exec"), names)
    return names["step"]


def test_where_a_function_is_defined(tmp_path: Path) -> None:
    """As all ranks say it, also one that decorates the function, or runs it from text."""
    here, line = Path(__file__).name, Called.__call__.__code__.co_firstlineno
    assert naming._source_of(Called()) == f"{here}:{line} of Called"
    assert naming._source_of(Other()) == f"{here}:{line} of Other"
    step = one()
    assert naming._source_of(step) == f"{here}:{step.__code__.co_firstlineno}"
    for alike in (decorated(step), functools.partial(step), decorated(functools.partial(decorated(step)))):
        assert naming._source_of(alike) == naming._source_of(step)
    (tmp_path / "tmp1a2b.py").touch()
    for file in ("<string>", "<ipython-input-3-5f>", str(tmp_path / "tmp1a2b.py"), tf.__file__):
        assert naming._source_of(executed(file)) == ""
    assert naming._source_of(tf.autograph.to_graph(step)) == ""


@pytest.mark.parametrize("kind", ["lambdas", "objects", "functions"])
def test_the_job_ends(short_lived: Ranks, kind: str) -> None:
    for text in short_lived(check, kind):
        assert "The ranks are in different functions" in text, text
