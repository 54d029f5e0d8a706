"""Functions of one name are told apart by where the program defines them, in a step that fails between two of them."""

from __future__ import annotations

from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import slipstream.tensorflow as hvd  # noqa: E402
from faces.rank_jobs import Ranks  # noqa: E402
from faces.tensorflow.failing_steps import until_the_end  # noqa: E402


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


@pytest.mark.parametrize("kind", ["lambdas", "objects", "functions"])
def test_the_job_ends(short_lived: Ranks, kind: str) -> None:
    for text in short_lived(check, kind):
        assert "The ranks are in different functions" in text, text
