"""Gradients that are handed over while backward goes on, and compute that waits for the nodes that do it.

The ranks have one inter-op thread (rank_process.py), as that is where compute has to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import slipstream.tensorflow as hvd  # noqa: E402
from faces.rank_jobs import Ranks  # noqa: E402
from faces.tensorflow.conftest import QUIET, WORKER  # noqa: E402
from slipstream.faces.arrays.gradients import Exchange  # noqa: E402
from slipstream.faces.tensorflow import gates, parts  # noqa: E402

SIDE = 4
Loss = Callable[[list[Any], Any], Any]


def with_call(call: Callable[[Any], Any], stateful: bool = False) -> Callable[[Any], Any]:
    """A function that gives what it gets; in backward Python is called with the gradient."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def same(y: Any) -> Any:
        def gradient(dy: Any) -> Any:
            return tf.ensure_shape(tf.numpy_function(call, [dy], tf.float32, stateful), y.shape)

        return tf.identity(y), gradient

    return same  # type: ignore[no-any-return]


def layers(weights: list[Any], x: Any) -> Any:
    for one in weights:
        x = tf.tanh(x @ one)
    return x


def chain(weights: list[Any], x: Any) -> Any:
    return tf.reduce_mean(layers(weights, x) ** 2)


def residual(weights: list[Any], x: Any) -> Any:
    for one in weights:
        x = x + tf.tanh(x @ one)
    return tf.reduce_mean(x * x)


def shared(weights: list[Any], x: Any) -> Any:
    for one in [*weights, *weights[:2]]:
        x = tf.tanh(x @ one)
    return tf.reduce_mean(x * x)


def branches(weights: list[Any], x: Any) -> Any:
    found = [tf.tanh(x @ one) for one in weights]
    return tf.reduce_mean(found[0] * found[1]) + tf.reduce_sum(found[-1]) + tf.reduce_mean(tf.add_n(found))


def with_control_flow(weights: list[Any], x: Any) -> Any:
    x = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.tanh(y @ weights[0])), [0, x])[1]
    x = tf.cond(tf.reduce_sum(x) > 0, lambda: x @ weights[1], lambda: x @ weights[2])
    return chain(weights[3:], x)


def with_state(weights: list[Any], x: Any) -> Any:
    """Its backward pass has nodes with a state, which TensorFlow runs in the order of the program."""

    looked_at = with_call(lambda dy: dy, stateful=True)
    for one in weights:
        x = looked_at(tf.tanh(x @ one))
    return tf.reduce_mean(x * x)


LOSSES: list[Loss] = [chain, residual, shared, branches, with_control_flow, with_state]


def trained(loss: Loss, wrap: Callable[[Any], Any], count: int = 5, steps: int = 3) -> tuple[Any, Any]:
    """Weights after some steps in a function, and its graph."""
    generator = np.random.default_rng(0)
    weights = [tf.Variable(one) for one in generator.normal(size=(count, SIDE, SIDE)).astype(np.float32)]
    x = tf.constant(generator.normal(size=(hvd.size() * 2, SIDE)), tf.float32)[hvd.rank() * 2 :][:2]

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            value = loss(weights, x)
        for one, grad in zip(weights, wrap(tape).gradient(value, weights), strict=True):
            one.assign_sub(0.1 * grad)

    for _ in range(steps):
        step()
    return [one.numpy() for one in weights], step.get_concrete_function().graph


def handed_over(graph: Any) -> list[Any]:
    return [one for one in graph.get_operations() if one.type == "PyFuncStateless"]


def held_back(graph: Any) -> list[str]:
    """The compute that waits for gradients to be handed over."""
    nodes = [one for one in graph.get_operations() if not one.type.startswith("Slipstream")]
    return [one.name for one in nodes if any(each.type == "PyFuncStateless" for each in one.control_inputs)]


def inputs_of(node: Any) -> list[Any]:
    return [*(one.op for one in node.inputs), *node.control_inputs]


def check_no_cycle(graph: Any) -> None:
    left = {one.name: len({each.name for each in inputs_of(one)}) for one in graph.get_operations()}
    users: dict[str, list[str]] = {name: [] for name in left}
    for one in graph.get_operations():
        for name in {each.name for each in inputs_of(one)}:
            users[name].append(one.name)
    ready = [name for name, count in left.items() if not count]
    seen = 0
    while ready:
        seen += 1
        for name in users[ready.pop()]:
            left[name] -= 1
            if not left[name]:
                ready.append(name)
    assert seen == len(left), [name for name, count in left.items() if count]


def ancestors(node: Any) -> set[str]:
    found: set[str] = set()
    todo = [node]
    while todo:
        for one in inputs_of(todo.pop()):
            if one.name not in found:
                found.add(one.name)
                todo.append(one)
    return found


def small_parts(monkeypatch: Any) -> None:
    monkeypatch.setattr(parts, "_PART_BYTES", 1)


def check_graphs(number: int) -> None:
    loss = LOSSES[number]
    with pytest.MonkeyPatch.context() as patched:
        whole, graph = trained(loss, hvd.DistributedGradientTape)
        assert not handed_over(graph)  # they are small
        small_parts(patched)
        in_parts, graph = trained(loss, hvd.DistributedGradientTape)
        nodes = handed_over(graph)
        assert len(nodes) > 1
        check_no_cycle(graph)
        assert held_back(graph)
        patched.setattr(gates, "are_needed", lambda: False)
        free, graph = trained(loss, hvd.DistributedGradientTape)
        assert not held_back(graph)
    for one, other, third in zip(in_parts, whole, free, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(one, third)
    assert all(np.array_equal(in_parts[0], one) for one in hvd.allgather_object(in_parts[0]))


def check_what_runs_first() -> None:
    """Backward of the first layers runs after gradients of the last ones have been handed over."""
    events: list[str] = []

    def probe(number: int) -> Any:
        def note(dy: Any) -> Any:
            events.append(f"backward {number}")
            return dy

        return with_call(note)

    def loss(weights: list[Any], x: Any) -> Any:
        for number, one in enumerate(weights):
            x = probe(number)(tf.tanh(x @ one))
        return tf.reduce_mean(x * x)

    give = Exchange.give

    def noted(self: Any, numbers: Any, arrays: Any) -> None:
        give(self, numbers, arrays)
        events.append(f"gradient {numbers[0]}")

    with pytest.MonkeyPatch.context() as patched:
        small_parts(patched)
        patched.setattr(Exchange, "give", noted)
        trained(loss, hvd.DistributedGradientTape, count=4, steps=1)
        assert events == [f"{what} {number}" for number in (3, 2, 1, 0) for what in ("backward", "gradient")]


def check_what_a_tape_may_have() -> None:
    with pytest.MonkeyPatch.context() as patched:
        small_parts(patched)
        what_a_tape_may_have()


def what_a_tape_may_have() -> None:
    """None, sparse gradients, local ones, casts, factors of the program, and a tape that is used twice."""
    rank, size = hvd.rank(), hvd.size()
    table, unused = tf.Variable(tf.ones([6, SIDE])), tf.Variable(1.0)
    weights = [tf.Variable(tf.eye(SIDE) * (number + 1.0)) for number in range(4)]
    sources = [table, unused, *weights]
    mean = (size + 1) / 2

    def value(x: Any) -> Any:
        for one in weights:
            x = x @ one
        return tf.reduce_sum(x) * (rank + 1.0)

    def plain() -> Any:
        with tf.GradientTape(persistent=True) as tape:
            y = value(tf.gather(table, [0, 1]))
        return tape.gradient(y, sources)

    alone = [one for one in tf.function(plain)() if one is not None]  # on this rank
    for compression in (hvd.Compression.none, hvd.Compression.fp16):

        @tf.function
        def step(compression: Any = compression) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                y = value(tf.gather(table, [0, 1]))
            tape = hvd.DistributedGradientTape(tape, compression=compression)
            tape.register_local_source(weights[2])
            first = tape.gradient(y, sources)
            assert first[1] is None
            return [one for one in first if one is not None], tape.gradient(y, weights)

        for _ in range(3):
            first, second = step()
            assert len(first[0].values) == 2 * size
            np.testing.assert_allclose(first[3], alone[3] / size)
            for found in ([first[1], first[2], first[4]], [second[0], second[1], second[3]]):
                for one, own in zip(found, [alone[1], alone[2], alone[4]], strict=True):
                    np.testing.assert_allclose(one, own / (rank + 1.0) * mean)
    assert len(handed_over(step.get_concrete_function().graph)) > 2


def check_work_between_backward_and_the_reduction() -> None:
    """It comes first, as it did: an assertion on the gradients ends a step that has handed over nothing."""
    weights = [tf.Variable(tf.eye(SIDE)) for _ in range(3)]

    @tf.function
    def step(good: Any, before: bool) -> Any:
        with tf.GradientTape() as tape:
            if before:
                tf.debugging.Assert(good, ["bad step"])
            value = chain(weights, tf.ones([2, SIDE]))
        reduce = hvd.DistributedGradientTape(tape)._slipstream
        grads = tape.gradient(value, weights)
        if not before:
            tf.debugging.Assert(good, ["bad step"])
        return reduce(grads, weights)

    with pytest.MonkeyPatch.context() as patched:
        small_parts(patched)
        for before in (True, False):
            for good in (True, False, True):
                if good:
                    step(tf.constant(True), before)
                    continue
                with pytest.raises(tf.errors.InvalidArgumentError, match="bad step"):
                    step(tf.constant(False), before)
            graph = step.get_concrete_function(tf.constant(True), before).graph
            assert bool(handed_over(graph)) is before


def check_loops() -> None:
    """Steps in a loop of the function, each after the one before."""
    weights = [tf.Variable(tf.eye(SIDE) * 0.5) for _ in range(3)]
    x = tf.fill([2, SIDE], hvd.rank() + 1.0)

    def steps(count: Any) -> None:
        for _ in tf.range(count):
            with tf.GradientTape() as tape:
                value = chain(weights, x)
            grads = hvd.DistributedGradientTape(tape).gradient(value, weights)
            for one, grad in zip(weights, grads, strict=True):
                one.assign_sub(0.1 * grad)

    with pytest.MonkeyPatch.context() as patched:
        small_parts(patched)
        tf.function(steps)(tf.constant(4))
        found = [one.numpy() for one in weights]
        for one in weights:
            one.assign(tf.eye(SIDE) * 0.5)
        tf.config.run_functions_eagerly(True)
        steps(tf.constant(4))
        tf.config.run_functions_eagerly(False)
    for one, other in zip(found, weights, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-5)


def check_a_step_that_failed_amid_backward() -> None:
    weights = [tf.Variable(tf.eye(SIDE)) for _ in range(4)]
    fails = tf.Variable(False)

    def check(dy: Any) -> Any:
        if fails.numpy():
            raise RuntimeError("amid backward")
        return dy

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            x = with_call(check)(layers(weights[:2], tf.ones([2, SIDE])))
            value = chain(weights[2:], x)
        return hvd.DistributedGradientTape(tape).gradient(value, weights)

    with pytest.MonkeyPatch.context() as patched:
        small_parts(patched)
        step()
        if hvd.rank() == 1:
            fails.assign(True)
            with pytest.raises(tf.errors.UnknownError, match="amid backward"):
                step()
            fails.assign(False)
        with pytest.raises(
            tf.errors.UnknownError, match=r"rank 1 began a step while another one .* had not ended"
        ):
            step()


def check_starts_hold_back_compute() -> None:
    """Of native operations that the program calls: compute that is added later waits for their start."""

    def many(x: Any) -> Any:
        found = []
        for _ in range(3):
            x = tf.tanh(x @ x)
            found.append(hvd.allreduce(x, op=hvd.Sum))
        return found

    function = tf.function(many)
    found = function(tf.eye(SIDE))
    graph = function.get_concrete_function(tf.eye(SIDE)).graph
    check_no_cycle(graph)
    nodes = graph.get_operations()
    starts = [one.name for one in nodes if one.type == "SlipstreamStart"]
    products = [one for one in nodes if one.type == "MatMul"]
    for place, node in enumerate(products):
        assert ancestors(node) & set(starts) == set(starts[:place])
    own = np.eye(SIDE)
    for one in found:
        own = np.tanh(own @ own)
        np.testing.assert_allclose(one, own * hvd.size(), rtol=1e-5)


def check_join() -> None:
    """A rank that has no more batches takes part with zeros."""
    weights = [tf.Variable(tf.eye(SIDE)) for _ in range(4)]

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            value = chain(weights, tf.ones([2, SIDE]))
        return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(value, weights)

    with pytest.MonkeyPatch.context() as patched:
        small_parts(patched)
        both = step()
        if hvd.rank() == 0:
            for _ in range(2):
                for one, other in zip(step(), both, strict=True):
                    np.testing.assert_allclose(one, other / 2)
        hvd.join()
    assert len(handed_over(step.get_concrete_function().graph)) > 2


def check_constant_gradients() -> None:
    """TensorFlow computes what is constant once, when it makes the graph: also what hands it over."""
    weights = [tf.Variable(tf.fill([1 << 19], 0.5)) for _ in range(3)]

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(weights[0]), tf.reduce_sum(weights[1] * weights[1] * x)])
            loss += tf.reduce_sum(tf.tanh(weights[2]) * x)
        return [one[0] for one in hvd.DistributedGradientTape(tape).gradient(loss, weights)]

    for turn in range(3):
        found = step(tf.constant(1.0 + turn + hvd.rank()))
        mean = 1.0 + turn + (hvd.size() - 1) / 2
        np.testing.assert_allclose(found, [1.0, mean, mean * (1 - np.tanh(0.5) ** 2)], rtol=1e-6)


def check_constants_behind_a_check() -> None:
    """The same, where constant gradients wait for a check of an argument."""
    side = 600
    data = np.ones((8, side), np.float32)
    weights = [tf.Variable(tf.ones([side, side])) for _ in range(4)]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def checked(y: Any, good: Any) -> Any:
        def gradient(dy: Any) -> Any:
            with tf.control_dependencies([tf.debugging.assert_equal(good, True)]):
                return tf.identity(dy), None

        return tf.identity(y), gradient

    @tf.function
    def step(good: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = checked(tf.add_n([tf.reduce_sum(tf.matmul(data, one)) for one in weights]), good)
        return [one[0, 0] for one in hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, weights)]

    for _ in range(3):
        np.testing.assert_array_equal(step(tf.constant(True)), [8.0 * hvd.size()] * 4)


def check_functions_before() -> None:
    """A function that reduces gradients of the same shapes is called before: its step ends first."""
    side = 512
    weights = [tf.Variable(tf.random.stateless_normal([side, side], [i, 1]) / 30) for i in range(3)]

    def gradients(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = chain(weights, x)
        return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, weights)

    inner = tf.function(gradients)
    outer = tf.function(lambda a, b: (inner(a), gradients(b)))
    a, b = (tf.random.stateless_normal([8, side], [hvd.rank(), seed]) for seed in (7, 8))
    want = inner(a), inner(b)
    for _ in range(3):
        for found, known in zip(outer(a, b), want, strict=True):
            for one, other in zip(found, known, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


CHECKS = [
    check_join,
    check_what_runs_first,
    check_what_a_tape_may_have,
    check_work_between_backward_and_the_reduction,
    check_loops,
    check_constant_gradients,
    check_constants_behind_a_check,
    check_functions_before,
]


@pytest.mark.parametrize("number", range(len(LOSSES)))
def test_graphs(negotiated: Ranks, number: int) -> None:
    negotiated(check_graphs, number)


@pytest.mark.parametrize("check", CHECKS)
def test_on_ranks(negotiated: Ranks, check: Any) -> None:
    negotiated(check)


def test_beside_native_operations(three: Ranks) -> None:
    three(check_what_runs_first)
    three(check_starts_hold_back_compute)


@pytest.fixture
def short_lived(tmp_path: Path) -> Iterator[Ranks]:
    """A job of two ranks that ends within the test."""
    ranks = Ranks(2, tmp_path, worker=WORKER, environment=QUIET | {"SLIPSTREAM_TIMEOUT": "20"})
    yield ranks
    ranks.stop()


def test_a_step_that_failed_amid_backward(short_lived: Ranks) -> None:
    short_lived(check_a_step_that_failed_amid_backward, dying=[0, 1])


def check_alone() -> None:
    weights, graph = trained(residual, hvd.DistributedGradientTape)
    assert not handed_over(graph)
    for one, other in zip(weights, trained(residual, lambda tape: tape)[0], strict=True):
        np.testing.assert_array_equal(one, other)


def test_one_rank(tmp_path: Path) -> None:
    ranks = Ranks(1, tmp_path, worker=WORKER, environment=QUIET)
    try:
        ranks(check_alone)
    finally:
        ranks.stop()
