"""SlipstreamStart and SlipstreamWait: order, and work with one inter-op thread.

The ranks have one inter-op thread (rank_process.py), so an operation that kept it busy would stop all others.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import slipstream  # noqa: E402
import slipstream.tensorflow as hvd  # noqa: E402
from faces.rank_jobs import Ranks  # noqa: E402
from faces.tensorflow.conftest import QUIET, WORKER  # noqa: E402
from faces.tensorflow.given_up import give_up  # noqa: E402
from slipstream.faces.tensorflow.operations import apply_operation  # noqa: E402

v1 = tf.compat.v1
MANY = 24


def types_of(graph: Any) -> list[str]:
    return [one.type for one in graph.get_operations()]


def starts_of(graph: Any) -> list[Any]:
    return [one for one in graph.get_operations() if one.type == "SlipstreamStart"]


def check_that_they_are_used() -> None:
    def all_of_them(x: Any) -> Any:
        sums = hvd.grouped_allreduce([x, x + 1, tf.cast(x, tf.int32)], op=hvd.Sum)
        return hvd.allreduce(x), sums, hvd.broadcast(x, root_rank=0, name="named")

    function = tf.function(all_of_them).get_concrete_function(tf.ones([3]))
    types = types_of(function.graph)
    assert (types.count("SlipstreamStart"), types.count("SlipstreamWait")) == (3, 3)
    assert not {"PyFunc", "PyFuncStateless", "EagerPyFunc"} & set(types)
    assert [one.shape for one in function.structured_outputs[1]] == [(3,)] * 3
    adasum = tf.function(lambda x: hvd.allreduce(x, op=hvd.Adasum)).get_concrete_function(tf.ones([3]))
    assert "PyFunc" in types_of(adasum.graph)


def check_groups_of_small_and_large() -> None:
    shapes = [(3,), (0,), (50_000,), (), (2, 5), (7,)]
    dtypes = ["float32", "float32", "float32", "float64", "int32", "float32"]
    given = [
        np.full(shape, i + hvd.rank(), dtype)
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    run = tf.function(lambda: hvd.grouped_allreduce([tf.constant(one) for one in given], op=hvd.Sum))
    for _ in range(3):
        for i, one in enumerate(run()):
            want = sum(i + rank for rank in range(hvd.size()))
            np.testing.assert_array_equal(one.numpy(), np.full(shapes[i], want, dtypes[i]))


def check_factors() -> None:
    """They are rounded as they are for eager tensors, both of them."""
    sent = [tf.constant([1.0, 3.0, 5.0]), tf.constant([1.0, 3.0, 5.0], tf.float64)]
    given = {"op": hvd.Sum, "prescale_factor": 0.7, "postscale_factor": 0.3}
    run = tf.function(
        lambda: [*(hvd.allreduce(one, **given) for one in sent), *hvd.grouped_allreduce(sent, **given)]
    )
    for one, want in zip(run(), 2 * [hvd.allreduce(one, **given) for one in sent], strict=True):
        np.testing.assert_array_equal(one.numpy(), want.numpy())


def check_order() -> None:
    """Independent operations, some of whose inputs come late, on each rank others."""

    def many(x: Any) -> Any:
        found = []
        for i in range(MANY):
            late = tf.reduce_sum(tf.linalg.matmul(x, x)) * 0 if (i + hvd.rank()) % 3 == 0 else 0.0
            found.append(hvd.allreduce(tf.fill([4], float(i)) + late, op=hvd.Sum))
        return found

    run = tf.function(many)
    for _ in range(10):
        for i, one in enumerate(run(tf.ones([96, 96]))):
            np.testing.assert_array_equal(one.numpy(), np.full(4, i * hvd.size()))


def check_order_of_loops() -> None:
    @tf.function
    def loop(n: Any) -> Any:
        found = tf.TensorArray(tf.float32, n)
        for i in tf.range(n):
            late = (
                tf.reduce_sum(tf.ones([64, 64]) @ tf.ones([64, 64])) * 0 if (i + hvd.rank()) % 2 == 0 else 0.0
            )
            found = found.write(i, hvd.allreduce(tf.cast(i, tf.float32) + late, op=hvd.Sum))
        return found.stack()

    for _ in range(10):
        np.testing.assert_array_equal(loop(tf.constant(12)).numpy(), np.arange(12) * hvd.size())


def check_order_of_backward() -> None:
    """The backward function of a tape outside orders nothing by itself."""

    @tf.function
    def forward(xs: Any) -> Any:
        return tf.add_n([hvd.allreduce(x, op=hvd.Sum) * float(i) for i, x in enumerate(xs)])

    xs = [tf.ones([3]) for _ in range(MANY)]
    for _ in range(10):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            y = forward(xs)
        for i, grad in enumerate(tape.gradient(y, xs)):
            np.testing.assert_array_equal(grad.numpy(), np.full(3, i * hvd.size()))


def check_order_of_backward_by_python() -> None:
    """The same of operations that go through numpy_function."""

    @tf.function
    def forward(xs: Any) -> Any:
        return tf.add_n([tf.reduce_sum(hvd.allgather(x)) * float(i) for i, x in enumerate(xs)])

    xs = [tf.ones([3]) for _ in range(MANY)]
    for _ in range(5):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            y = forward(xs)
        for i, grad in enumerate(tape.gradient(y, xs)):
            np.testing.assert_array_equal(grad.numpy(), np.full(3, i))


def check_inputs_stay() -> None:
    variable = tf.Variable(tf.ones([1000]))

    @tf.function
    def step(x: Any) -> Any:
        y = x * 2
        total = hvd.allreduce(y, op=hvd.Sum)
        own = hvd.allreduce(variable, op=hvd.Sum)
        variable.assign_add(tf.ones([1000]))
        return y, total, own

    for turn in range(5):
        y, total, own = step(tf.ones([1000]))
        np.testing.assert_array_equal(y.numpy(), np.full(1000, 2))
        np.testing.assert_array_equal(total.numpy(), np.full(1000, 2 * hvd.size()))
        np.testing.assert_array_equal(own.numpy(), np.full(1000, (turn + 1) * hvd.size()))


def check_results_that_nobody_uses() -> None:
    @tf.function
    def step(x: Any) -> Any:
        hvd.allreduce(x, op=hvd.Sum)
        return hvd.allreduce(x + 1, op=hvd.Sum)

    for _ in range(20):
        np.testing.assert_array_equal(step(tf.ones([5])).numpy(), np.full(5, 2 * hvd.size()))


def check_mismatch() -> None:
    for turn in range(3):
        x = tf.ones([1001 + turn + 100 * hvd.rank()])
        text = rf"Mismatched allreduce.*rank 0 with float32, \({1001 + turn},\).*rank 1 with .*\({1101 + turn},\)"
        with pytest.raises(tf.errors.FailedPreconditionError, match=text):
            tf.function(lambda x=x: hvd.allreduce(x, op=hvd.Sum))()
    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"Mismatched broadcast.*from rank 0.*from rank 1"
    ):
        tf.function(lambda: hvd.broadcast(tf.ones(1001), root_rank=min(hvd.rank(), 1)))()
    run = tf.function(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum))
    np.testing.assert_array_equal(run().numpy(), np.full(2, hvd.size()))


def check_known_shapes_of_equal_size() -> None:
    """Ranks that have met both forms before tell each other of every operation, too."""
    sums = [tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum)) for _ in range(2)]
    for run, shape in zip(sums, ([4, 6], [6, 4]), strict=True):
        run(tf.ones(shape))
    for _ in range(2):
        with pytest.raises(
            tf.errors.FailedPreconditionError,
            match=r"Mismatched allreduce.*rank 0 with float32, \(4, 6\).*rank 1 with float32, \(6, 4\)",
        ):
            sums[min(hvd.rank(), 1)](tf.ones([4, 6][:: -1 if hvd.rank() else 1]))
        np.testing.assert_array_equal(sums[0](tf.ones([4, 6])).numpy(), np.full([4, 6], hvd.size()))


def check_mismatched_kinds() -> None:
    """One of them is a broadcast."""

    @tf.function
    def step(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum) if hvd.rank() else hvd.broadcast(x, root_rank=1)

    for _ in range(2):
        with pytest.raises(
            tf.errors.FailedPreconditionError,
            match=r"Mismatched broadcast in.*rank 0 with .*\(3,\), from rank 1.*rank 1 with allreduce of float32",
        ):
            step(tf.ones(3))
    run = tf.function(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum))
    np.testing.assert_array_equal(run().numpy(), np.full(2, hvd.size()))


def check_eager_beside_graph(known: bool) -> None:
    """They do not meet, whatever their names. It ends by the limit of time, with a text that names both ranks."""

    def call() -> Any:
        return hvd.allreduce(tf.ones(3), op=hvd.Sum, name="both ways")

    run = tf.function(call)
    if known:
        run()
    error = tf.errors.UnknownError if hvd.rank() else slipstream.SlipstreamError
    with pytest.raises(error, match=r"both ways.*rank 0|rank 0.*both ways") as caught:
        run() if hvd.rank() else call()
    assert "rank 1" in str(caught.value)
    assert "SLIPSTREAM_TIMEOUT" in str(caught.value)


def raw(kind: str, **inputs: Any) -> Any:
    return apply_operation()(kind, name=None, **inputs)


def check_refused() -> None:
    """What this rank alone sees to be wrong is an InvalidArgumentError, and the job goes on."""

    @tf.function
    def of_a_dtype(line: str = "all: refused") -> Any:
        ticket, results = raw(
            "SlipstreamStart",
            inputs=[tf.constant(["text"])],
            call=[1, 0, 0, 0, 0, 0],
            line=line,
            what="",
            place="",
        )
        return raw("SlipstreamWait", ticket=ticket, results=results)

    @tf.function
    def of_no_set() -> Any:
        ticket, results = raw(
            "SlipstreamStart",
            inputs=[tf.ones(2)],
            call=[1, 0, 0, 0, 0, 0],
            line="0: gone",
            what="",
            place="",
        )
        return raw("SlipstreamWait", ticket=ticket, results=results)

    with pytest.raises(tf.errors.InvalidArgumentError, match="this dtype"):
        of_a_dtype()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"no process set of the ranks \[0\]"):
        of_no_set()
    run = tf.function(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum))
    np.testing.assert_array_equal(run().numpy(), np.full(2, hvd.size()))


def check_second_wait() -> None:
    """One of them gets the results, the other an error; none waits for ever."""

    @tf.function
    def twice(x: Any) -> Any:
        call = [1, 0, 0, 0, *np.array([1.0, 1.0]).view(np.int64).tolist()]
        ticket, results = raw("SlipstreamStart", inputs=[x], call=call, line="all: twice", what="", place="")
        (first,) = raw("SlipstreamWait", ticket=ticket, results=results)
        (second,) = raw("SlipstreamWait", ticket=ticket, results=[results[0] + 1])
        return first, second

    with pytest.raises(tf.errors.InvalidArgumentError, match="two SlipstreamWait"):
        twice(tf.ones(3))
    with pytest.raises(tf.errors.InvalidArgumentError, match="nothing that SlipstreamStart"):
        tf.function(lambda: raw("SlipstreamWait", ticket=np.int64(10**9), results=[tf.ones(1)]))()


def check_cancelled(session: bool) -> None:
    """A step that fails, or is given up, does not wait for ranks that have not begun theirs."""
    config = v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
    with tf.Graph().as_default() as graph:
        total = hvd.allreduce(tf.ones(3), op=hvd.Sum)
        of_session = v1.Session(graph=graph, config=config)

    @tf.function
    def step(bad: Any) -> Any:
        found = hvd.allreduce(tf.ones(3), op=hvd.Sum)
        tf.debugging.Assert(tf.logical_not(bad), ["bad"])
        return found

    if hvd.rank() == 0 and session:
        give_up(of_session, total)
    elif hvd.rank() == 0:
        with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
            step(tf.constant(True))
    hvd.barrier()
    if hvd.rank():  # what rank 0 has begun goes on without its step
        found = of_session.run(total) if session else step(tf.constant(False))
        np.testing.assert_array_equal(found, np.full(3, hvd.size()))
    hvd.barrier()
    found = of_session.run(total) if session else step(tf.constant(False))
    np.testing.assert_array_equal(found, np.full(3, hvd.size()))


class Saved(tf.Module):
    """A graph with operations of the world and of a set."""

    def __init__(self, some: Any) -> None:
        self.some = some

    @tf.function(input_signature=[tf.TensorSpec([2])])
    def total(self, x: Any) -> Any:
        """Their sums."""
        of_some = hvd.allreduce(x, op=hvd.Sum, process_set=self.some, name="some")
        return hvd.allreduce(x, op=hvd.Sum, name="all"), of_some


def check_saved(folder: str, number: int) -> None:
    """Saves a graph in one job, whose lines and sets have other numbers than those of the job that loads it."""
    others = [hvd.add_process_set([0]) for _ in range(1 - number)]
    some = hvd.add_process_set([0, 1])
    if number == 0:
        tf.function(lambda: hvd.allreduce(tf.ones(2), name="before"))()
        mine = f"{folder}/{hvd.rank()}"
        if hvd.rank() < 2:
            saved = Saved(some)
            saved.total(tf.ones(2))
            tf.saved_model.save(saved, mine)
        else:
            tf.function(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum, name="all"))()
    elif hvd.rank() < 2:
        apply_operation()
        loaded = tf.saved_model.load(f"{folder}/{hvd.rank()}")
        for _ in range(2):
            total, of_some = loaded.total(tf.fill([2], 1.0 + hvd.rank()))
            np.testing.assert_array_equal(total, np.full(2, 1 + 2 + 3 * (hvd.size() - 2)))
            np.testing.assert_array_equal(of_some, np.full(2, 3))
    else:
        run = tf.function(lambda: hvd.allreduce(tf.fill([2], 3.0), op=hvd.Sum, name="all"))
        for _ in range(2):
            run()
    for one in [*others, some]:
        hvd.remove_process_set(one)


def check_lost_amid_many() -> None:
    @tf.function
    def step() -> Any:
        return [hvd.allreduce(tf.fill([100_000], float(i)), op=hvd.Sum) for i in range(MANY)]

    step()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(2):  # later ones fail, too
        with pytest.raises(tf.errors.UnknownError, match="rank 1"):
            step()


CHECKS = [
    check_that_they_are_used,
    check_groups_of_small_and_large,
    check_factors,
    check_order,
    check_order_of_loops,
    check_order_of_backward,
    check_order_of_backward_by_python,
    check_inputs_stay,
    check_results_that_nobody_uses,
    check_mismatch,
    check_known_shapes_of_equal_size,
    check_mismatched_kinds,
    check_refused,
    check_second_wait,
]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("check", CHECKS)
def test_on_ranks(tensorflow_jobs: Any, size: int, check: Any) -> None:
    tensorflow_jobs[size](check)


@pytest.mark.parametrize("session", [False, True])
def test_a_step_that_is_cancelled(tensorflow_jobs: Any, session: bool) -> None:
    tensorflow_jobs[2](check_cancelled, session)


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Ranks]:
    """A job of two ranks with a short limit of time."""
    ranks = Ranks(2, tmp_path, worker=WORKER, environment=QUIET | {"SLIPSTREAM_TIMEOUT": "4"})
    yield ranks
    ranks.stop()


@pytest.mark.parametrize("known", [False, True])
def test_eager_beside_graph(hasty: Ranks, known: bool) -> None:
    hasty(check_eager_beside_graph, known, dying=[0, 1])  # no job is left


def test_a_graph_that_another_process_loads(tensorflow_jobs: Any, tmp_path: Any) -> None:
    tensorflow_jobs[3](check_saved, str(tmp_path), 0, dying=[0, 1, 2])
    tensorflow_jobs[3](check_saved, str(tmp_path), 1)


def test_a_rank_that_is_killed(tensorflow_jobs: Any) -> None:
    tensorflow_jobs[3](check_lost_amid_many, dying=[1])
