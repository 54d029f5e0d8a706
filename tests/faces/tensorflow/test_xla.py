"""Operations in functions that XLA compiles, on two and three ranks."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import slipstream  # noqa: E402
import slipstream.tensorflow as hvd  # noqa: E402
from slipstream.faces.arrays.kept import of_compiled  # noqa: E402


def jit(function: Any) -> Any:
    return tf.function(function, jit_compile=True)


def check_operations() -> None:
    rank, size = hvd.rank(), hvd.size()
    total = size * (size + 1) / 2

    @jit
    def all_of(x: Any) -> Any:
        mean = hvd.allreduce(x)
        added = hvd.allreduce(mean * 2, op=hvd.Sum, prescale_factor=0.5)
        kinds = [tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.int64, tf.uint16]
        many = hvd.grouped_allreduce([tf.cast(x, kind) for kind in kinds], op=hvd.Sum)
        return mean, added, many, hvd.broadcast(x, size - 1), hvd.allreduce(tf.reduce_sum(x), op=hvd.Max)

    for count in (1, 3, 100_000):  # those of more than 64 KiB are not done in XLA's thread
        x = tf.fill([count, 2], rank + 1.0)
        mean, added, many, sent, most = all_of(x)
        np.testing.assert_allclose(mean, np.full((count, 2), total / size))
        np.testing.assert_allclose(added, np.full((count, 2), total))
        for one in many:
            np.testing.assert_array_equal(tf.cast(one, tf.float32), np.full((count, 2), total))
        np.testing.assert_array_equal(sent, np.full((count, 2), float(size)))
        assert most.numpy() == pytest.approx(count * 2 * size)


def check_order() -> None:
    """Calls that do not depend on each other, of different sizes, run in the order of the program on all ranks."""
    rank, size = hvd.rank(), hvd.size()
    lengths = [1, 40_000, 7, 3, 20_000, 1, 2, 90_000, 5, 5, 1, 30_000]

    @jit
    def all_of(x: Any) -> Any:
        return [hvd.allreduce(tf.fill([one], x + i), op=hvd.Sum) for i, one in enumerate(lengths)]

    for turn in range(20):
        found = all_of(tf.constant(float(rank * turn)))
        want = size * (size - 1) / 2 * turn
        for i, one in enumerate(found):
            np.testing.assert_array_equal(one, np.full(lengths[i], want + i * size, np.float32))
    # XLA may run them in this order by itself, but does not promise it: each must need the one before.
    graph = all_of.get_concrete_function(tf.TensorSpec([], tf.float32)).graph
    calls = [one for one in graph.get_operations() if one.type == "XlaCallModule"]
    assert len(calls) == len(lengths)
    assert all(after.inputs[-1].op is before for before, after in pairwise(calls))


def check_gradients() -> None:
    """Of an operation, of a tape, and by every way that gradients can travel."""
    rank, size = hvd.rank(), hvd.size()
    mean = (size + 1) / 2

    @jit
    def of_operation(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(hvd.allreduce(x) * (rank + 1.0))
        return tape.gradient(y, x)

    np.testing.assert_allclose(of_operation(tf.ones([3])), [mean] * 3)
    whole, small = tf.Variable(tf.ones([50, 40])), tf.Variable([2.0])

    def of_tape(**options: Any) -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape(), **options) as tape:
            y = (tf.reduce_sum(whole) + small[0]) * (rank + 1.0)
        return tape.gradient(y, [whole, small])

    ways: list[dict[str, Any]] = [
        {},
        {"compression": hvd.Compression.fp16},
        {"compression": hvd.Compression.int8},
        {"gradient_predivide_factor": 2.0},
        {"op": hvd.Sum},
    ]
    for options in ways:
        want = mean * size if options.get("op") == hvd.Sum else mean
        for one in jit(lambda o=options: of_tape(**o))():
            np.testing.assert_allclose(one, np.full(one.shape, want), rtol=1e-2)
    with pytest.raises(NotImplementedError, match=r"(?s)gradients .*Take Compression"):
        jit(lambda: of_tape(compression=hvd.Compression.topk(0.1)))()


def check_process_sets() -> None:
    members = range(0, hvd.size(), 2)
    some = hvd.add_process_set(list(members))
    if some.included():
        found = jit(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=some))(tf.constant(hvd.rank() + 1))
        assert found.numpy() == sum(rank + 1 for rank in members)
    hvd.barrier()
    hvd.remove_process_set(some)


def check_what_there_is_not() -> None:
    def in_loop(x: Any) -> Any:
        return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, hvd.allreduce(y)), [0, x])

    def in_function(x: Any) -> Any:
        inner = tf.function(hvd.allreduce)
        return hvd.allreduce(x) + inner(x)

    def in_condition(x: Any) -> Any:
        return tf.cond(x[0] > 0, lambda: hvd.allreduce(x), lambda: x)

    python, within = "it goes through Python", "it is in a condition, a loop or a function within"
    calls: list[tuple[Any, str, str]] = [
        (hvd.allgather, "allgather", python),
        (hvd.alltoall, "alltoall", python),
        (hvd.reducescatter, "reducescatter", python),
        (lambda _: hvd.rank_op(), "rank_op", python),
        (lambda x: hvd.allreduce(x, op=hvd.Adasum), "allreduce by Adasum", python),
        (in_condition, "allreduce", within),
        (in_loop, "allreduce", within),
        (in_function, "allreduce", within),
    ]
    for call, what, why in calls:
        text = rf"(?s)(?<!gradient of )\b{what} of slipstream does not work in a function with jit_compile=True: {why}"
        with pytest.raises(NotImplementedError, match=text + ".*outside of them"):
            jit(call)(tf.ones([4]))
    unknown = tf.function(hvd.allreduce, jit_compile=True, input_signature=[tf.TensorSpec([None])])
    with pytest.raises(NotImplementedError, match=r"the shape \(None,\) of its tensor"):
        unknown(tf.ones([4]))
    # The functions above have called nothing, so that ranks still agree.
    assert jit(lambda x: hvd.allreduce(x, op=hvd.Sum))(tf.constant(1)).numpy() == hvd.size()


def check_ways_to_call() -> None:
    """From a function that XLA does not compile, by get_concrete_function, with variables that it makes."""
    size = hvd.size()
    compiled = jit(lambda x: hvd.allreduce(x, op=hvd.Sum))

    @tf.function
    def outer(x: Any) -> Any:
        return compiled(x) + compiled(x + 1)

    assert outer(tf.constant(1.0)).numpy() == 3 * size
    concrete = compiled.get_concrete_function(tf.TensorSpec([2], tf.float32))
    assert concrete(tf.ones([2])).numpy().tolist() == [size, size]
    made: list[Any] = []

    @jit
    def makes(x: Any) -> Any:
        if not made:
            made.append(tf.Variable(1.0))
        return hvd.allreduce(x, op=hvd.Sum) + made[0]

    assert makes(tf.constant(1.0)).numpy() == size + 1
    assert makes(tf.constant(2.0)).numpy() == 2 * size + 1


def check_beside_others() -> None:
    """Eager operations, and those of other functions, between those that XLA has compiled."""
    size = hvd.size()
    compiled = jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    in_graph = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    for turn in range(20):
        x = tf.constant(float(turn))
        found = [call(x).numpy() for call in (compiled, in_graph, lambda x: hvd.allreduce(x, op=hvd.Sum))]
        assert found == [turn * size] * 3


def check_lost() -> None:
    """A rank that is killed: the others raise; the text names it, and elastic training finds the job's error."""
    compiled = jit(lambda x: hvd.allreduce(x))
    x = tf.ones([100_000])
    compiled(x)
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)

    def many() -> None:
        for _ in range(1000):
            compiled(x)

    with pytest.raises(tf.errors.AbortedError, match="rank 1") as failed:
        many()
    assert isinstance(of_compiled(failed.value), slipstream.PeerLost), str(failed.value)


CHECKS = [
    check_operations,
    check_order,
    check_gradients,
    check_process_sets,
    check_what_there_is_not,
    check_ways_to_call,
    check_beside_others,
]


@pytest.mark.parametrize("check", CHECKS)
def test_on_ranks(ranks: Any, check: Any) -> None:
    ranks(check)


def test_a_rank_that_is_killed(three: Any) -> None:
    three(check_lost, dying=[1])
