"""Steps that fail, and programs that go on after them: each rank may have started other operations of such a step."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import slipstream  # noqa: E402
import slipstream.tensorflow as hvd  # noqa: E402
from faces.rank_jobs import Ranks  # noqa: E402

MANY = 8


def check_mismatch_amid_many() -> None:
    """The operations of its step fail with it, whether or not a rank has started them; the next step is right."""

    @tf.function
    def step(turn: Any, bad: Any) -> Any:
        found = []
        for i in range(MANY):
            slow = (
                tf.reduce_sum(tf.ones([128, 128]) @ tf.ones([128, 128])) * 0
                if (i + hvd.rank()) % 3 == 0
                else 0.0
            )
            found.append(hvd.allreduce(tf.fill([4], turn + float(i)) + slow, op=hvd.Sum))
            if i == 2:
                hvd.allreduce(bad, op=hvd.Sum)
        return found

    for turn in range(12):
        bad = tf.ones([3 + (hvd.rank() if turn % 2 else 0)])
        if turn % 2:
            with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched allreduce"):
                step(float(turn), bad)
            continue
        for i, one in enumerate(step(float(turn), bad)):
            np.testing.assert_array_equal(one.numpy(), np.full(4, (turn + i) * hvd.size()))


def check_failures_of_all() -> None:
    """A step that fails on all ranks, each at a moment of its own, for a reason that has nothing to do with ranks."""

    @tf.function
    def step(x: Any, bad: Any) -> Any:
        first = hvd.allreduce(x, op=hvd.Sum)
        return first, hvd.allreduce(tf.debugging.check_numerics(bad, "no number"), op=hvd.Sum)

    for turn in range(12):
        if turn % 3 == 1:
            with pytest.raises(tf.errors.InvalidArgumentError, match="no number"):
                step(tf.fill([2], float(turn)), tf.constant(np.nan))
            continue
        first, second = step(tf.fill([2], float(turn)), tf.constant(1.0))
        np.testing.assert_array_equal(first.numpy(), np.full(2, turn * hvd.size()))
        assert second == hvd.size()


def check_backward() -> None:
    """A backward function of its own counts its runs, too: one rank fails before its operation, others behind it."""
    before, after = tf.Variable(True), tf.Variable(True)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def same(x: Any) -> Any:
        def gradient(dy: Any) -> Any:
            with tf.control_dependencies([tf.debugging.Assert(before.read_value(), ["before"])]):
                found = hvd.allreduce(tf.identity(dy), op=hvd.Sum)
            with tf.control_dependencies([tf.debugging.Assert(after.read_value(), ["after"])]):
                return found + 0 * tf.identity(dy)

        return tf.identity(x), gradient

    forward = tf.function(lambda x: same(x) * 1.0)

    def step(value: float) -> Any:
        x = tf.Variable([1.0, 1.0])
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(forward(x)) * value
        return tape.gradient(y, x).numpy()

    for turn in range(3):
        np.testing.assert_array_equal(step(1.0 + turn), np.full(2, (1.0 + turn) * hvd.size()))
        fails = before if hvd.rank() == turn % hvd.size() else after
        fails.assign(False)
        # Nothing orders the second assertion and the operation: what comes first to the others, it or the news of the
        # rank that does not take part, is the error of their step.
        errors = tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError
        with pytest.raises(errors[:1] if fails is before else errors):
            step(100.0)
        fails.assign(True)
        hvd.barrier()
    np.testing.assert_array_equal(step(1.0), np.full(2, hvd.size()))


@tf.function
def checked(x: Any, before: Any, after: Any) -> Any:
    """One operation, with a check before it and one beside it."""
    with tf.control_dependencies([tf.debugging.Assert(before, ["before"])]):
        found = hvd.allreduce(x, op=hvd.Sum)
    tf.debugging.Assert(after, ["after"])
    return found


def check_another_run() -> None:
    """What a rank has given up, and another one has never started, does not meet a later step of that rank."""
    yes, no = tf.constant(True), tf.constant(False)
    for turn in range(6):
        np.testing.assert_array_equal(checked(tf.ones(2), yes, yes).numpy(), np.full(2, hvd.size()))
        if hvd.rank() == turn % hvd.size():
            # The others may have told this rank sooner that they do not take part.
            errors = (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError)
            with pytest.raises(errors, match=r"after|does not take part"):
                checked(tf.fill([2], 100.0), yes, no)
        else:
            with pytest.raises(tf.errors.InvalidArgumentError, match="before"):
                checked(tf.fill([2], 100.0), no, yes)
        if turn % 2:
            hvd.barrier()
    np.testing.assert_array_equal(checked(tf.ones(2), yes, yes).numpy(), np.full(2, hvd.size()))


def check_other_lines() -> None:
    """Operations with a name, which wait by themselves when another one of their step fails."""

    @tf.function
    def step(turn: Any, bad: Any, number: Any) -> Any:
        first = hvd.allreduce(bad, op=hvd.Sum)
        slow = tf.reduce_sum(tf.ones([128, 128]) @ tf.ones([128, 128])) * 0 if hvd.rank() else 0.0
        named = [hvd.allreduce(tf.fill([2], turn + i) + slow, op=hvd.Sum, name=f"line {i}") for i in range(3)]
        return [first, hvd.allreduce(tf.debugging.check_numerics(number, "no number"), op=hvd.Sum), *named]

    for turn in range(15):
        bad = tf.ones([3 + (hvd.rank() if turn % 3 == 1 else 0)])
        number = tf.constant(np.nan if turn % 3 == 2 else 1.0)
        if turn % 3:
            with pytest.raises((tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError)) as caught:
                step(float(turn), bad, number)
            assert "Mismatched allreduce" in str(caught.value) or "no number" in str(caught.value)
            continue
        for i, one in enumerate(step(float(turn), bad, number)[2:]):
            np.testing.assert_array_equal(one.numpy(), np.full(2, (turn + i) * hvd.size()))


def check_one_more() -> None:
    """One rank starts an operation more than the others in a step: later steps are right, or they fail."""

    @tf.function
    def step(turn: Any, more: Any) -> Any:
        found = hvd.allreduce(tf.fill([2], turn), op=hvd.Sum)
        if more:
            hvd.allreduce(tf.fill([2], turn), op=hvd.Sum)
        return found

    failed = []
    for turn in range(1, 9):
        try:
            found = step(float(turn), tf.constant(turn == 3 and hvd.rank() == 1))
        except tf.errors.FailedPreconditionError:
            failed.append(turn)
            continue
        np.testing.assert_array_equal(found.numpy(), np.full(2, turn * hvd.size()))
    assert failed == ([3] if hvd.rank() == 1 else [])


def check_the_same_run() -> None:
    """What a rank has begun goes on without its step, for the others' part of the same step."""
    yes, no = tf.constant(True), tf.constant(False)
    if hvd.rank() == 0:
        with pytest.raises(tf.errors.InvalidArgumentError, match="after"):
            checked(tf.fill([2], 3.0), yes, no)
    hvd.barrier()
    if hvd.rank():
        found = checked(tf.fill([2], 1.0), yes, yes)
        np.testing.assert_array_equal(found.numpy(), np.full(2, 3 + hvd.size() - 1))
    hvd.barrier()
    np.testing.assert_array_equal(checked(tf.ones(2), yes, yes).numpy(), np.full(2, hvd.size()))


def check_random_failures(seed: int, turns: int) -> None:
    """Whatever fails on whichever rank: what a step returns has parts of the same step alone, and all ranks go on."""
    rank, size = hvd.rank(), hvd.size()

    @tf.function
    def part(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum, name="of a part")

    @tf.function
    def step(turn: Any, fails_at: Any, more_at: Any, bad: Any) -> Any:
        found = []
        for i in range(4):
            if fails_at == 2 * i:
                tf.debugging.Assert(False, ["on purpose"])
            slow = tf.reduce_sum(tf.ones([64, 64]) @ tf.ones([64, 64])) * 0 if (i + rank) % 2 == 0 else 0.0
            found.append(hvd.allreduce(tf.fill([3], turn) + slow, op=hvd.Sum))
            if i == 1:
                found.append(part(tf.fill([3], turn)))
                found.append(hvd.allreduce(bad, op=hvd.Sum)[:3])
            if more_at == i:
                hvd.allreduce(tf.fill([3], turn), op=hvd.Sum)
            if fails_at == 2 * i + 1:
                with tf.control_dependencies(found):
                    tf.debugging.Assert(False, ["on purpose"])
        return found

    shared, own = np.random.default_rng(seed), np.random.default_rng([seed, rank])
    good = 0
    for turn in range(turns):
        troubled = shared.random(3) < (0.35, 0.1, 0.1)
        fails_at = own.integers(0, 8) if troubled[0] and own.random() < 0.6 else -1
        more_at = own.integers(0, 4) if troubled[1] and own.random() < 0.5 else -1
        bad = np.full(3 + int(troubled[2] and own.random() < 0.5), turn, np.float32)
        try:
            found = step(
                tf.constant(float(turn)), tf.constant(fails_at), tf.constant(more_at), tf.constant(bad)
            )
        except (tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError):
            continue
        good += 1
        for one in found:
            np.testing.assert_array_equal(one.numpy(), np.full(3, turn * size), err_msg=f"turn {turn}")
    assert good > turns // 3
    # Where the last ones have failed on some ranks alone, the others hear of it in the next one.
    for _ in range(2):
        with contextlib.suppress(tf.errors.FailedPreconditionError):
            step(tf.constant(1.0), tf.constant(-1), tf.constant(-1), tf.constant(np.ones(3, np.float32)))
    for one in step(tf.constant(1.0), tf.constant(-1), tf.constant(-1), tf.constant(np.ones(3, np.float32))):
        np.testing.assert_array_equal(one.numpy(), np.full(3, size))


def check_runs_of_some_ranks() -> None:
    """Ranks may run functions without their operations, or others of the same name, as often as they like."""

    @tf.function
    def step(communicates: Any) -> Any:
        if communicates:
            return hvd.allreduce(tf.ones(2), op=hvd.Sum)
        return tf.zeros(2)

    members = range(hvd.size() - 1)
    some = hvd.add_process_set(list(members))
    of_some = tf.function(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum, process_set=some))
    of_all = tf.function(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum))
    for _ in range(3):
        for _ in range(hvd.rank()):
            np.testing.assert_array_equal(step(tf.constant(False)).numpy(), np.zeros(2))
        if hvd.rank() in members:
            np.testing.assert_array_equal(of_some().numpy(), np.full(2, len(members)))
        np.testing.assert_array_equal(of_all().numpy(), np.full(2, hvd.size()))
        np.testing.assert_array_equal(step(tf.constant(True)).numpy(), np.full(2, hvd.size()))
    hvd.remove_process_set(some)


def check_before_its_operations() -> None:
    """The others learn which rank has failed, and nothing of its next step meets theirs."""
    yes, no = tf.constant(True), tf.constant(False)
    for turn in range(6):
        failing = turn % hvd.size()
        if hvd.rank() == failing:
            for _ in range(2):
                with pytest.raises(tf.errors.InvalidArgumentError, match="before"):
                    checked(tf.fill([2], 100.0), no, yes)
        else:
            for _ in range(2):
                with pytest.raises(
                    tf.errors.FailedPreconditionError, match=rf": rank {failing} does not take part"
                ):
                    checked(tf.fill([2], 100.0), yes, yes)
        np.testing.assert_array_equal(checked(tf.ones(2), yes, yes).numpy(), np.full(2, hvd.size()))


def check_the_end_of_data() -> None:
    """A rank whose data ends first raises before its operations, and joins: the others go on without it."""

    @tf.function
    def step(batches: Any) -> Any:
        return hvd.allreduce(next(batches), op=hvd.Sum)

    batches = iter(tf.data.Dataset.range(1, 3 + hvd.rank()))
    found = []
    with contextlib.suppress(tf.errors.OutOfRangeError):
        while True:
            found.append(int(step(batches)))
    last = hvd.join()
    assert last == hvd.size() - 1
    assert found == [
        i * sum(1 for rank in range(hvd.size()) if rank + 2 >= i) for i in range(1, 3 + hvd.rank())
    ]
    np.testing.assert_array_equal(step(iter(tf.data.Dataset.range(1, 2))).numpy(), hvd.size())


def check_before_the_function() -> None:
    """A call whose arguments do not fit the function's only trace is a step that has failed, too."""
    signature = [tf.TensorSpec([1, 4], tf.float32)]
    step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum), input_signature=signature)
    step(tf.ones([1, 4]))
    for turn in range(1, 4):
        if hvd.rank() == turn % hvd.size():
            with pytest.raises((TypeError, ValueError)):
                step(tf.ones([1, 5]))
        else:
            with pytest.raises(tf.errors.FailedPreconditionError, match=f"rank {turn % hvd.size()} does not"):
                step(tf.fill([1, 4], float(turn)))
        found = step(tf.fill([1, 4], float(turn))).numpy()
        np.testing.assert_array_equal(found, np.full(found.shape, turn * hvd.size()))


def check_agreement_after_a_failure() -> None:
    """Ranks ask each other whether all have done a step, by an operation that is none of a function."""
    yes, no = tf.constant(True), tf.constant(False)

    @tf.function
    def named(good: Any, name: str) -> Any:
        with tf.control_dependencies([tf.debugging.Assert(good, ["before"])]):
            return hvd.allreduce(tf.ones(2), op=hvd.Sum, name=name)

    def has_failed(step: Any) -> int:
        try:
            step()
        except (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError):
            return 1
        return 0

    for turn in range(4):
        good = yes if hvd.rank() != turn % hvd.size() else no
        failed = has_failed(lambda good=good: checked(tf.ones(2), good, yes))
        assert hvd.allreduce(tf.constant(failed), op=hvd.Sum).numpy() == hvd.size()
        # A name that no rank has used before, and then another one.
        has_failed(lambda good=good, turn=turn: named(good, f"new {turn}"))
        assert not has_failed(lambda turn=turn: named(yes, f"newer {turn}"))


def check_other_functions() -> tuple[bool, str]:
    """A rank leaves out the second function of a step: the job ends, since nothing tells which steps they are in."""
    first = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))

    @tf.function
    def second(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    errors = []
    for turn in range(6):
        try:
            found = first(tf.constant(float(turn))).numpy()
            assert found == turn * hvd.size()
            if turn != 2 or hvd.rank():
                assert second(tf.constant(float(turn))).numpy() == turn * hvd.size()
        except tf.errors.OpError as error:
            errors.append(str(error))
    return len(errors) >= 3, errors[0]


def check_threads(named: bool) -> list[str]:
    """Several threads, each of which runs a function of its own."""

    def function_of(number: int) -> Any:
        @tf.function
        def step(x: Any) -> Any:
            return hvd.allreduce(x, op=hvd.Sum, name=f"of {number}" if named else None)

        return step

    functions = [function_of(number) for number in range(3)]
    for step in functions:
        step(tf.constant(1.0))
    errors: list[str] = []

    def run(step: Any, number: int) -> None:
        try:
            for turn in range(200):
                value = float(1000 * number + turn)
                assert step(tf.constant(value)).numpy() == value * hvd.size()
        except (slipstream.SlipstreamError, tf.errors.OpError, AssertionError) as error:
            errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=(step, number)) for number, step in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


CHECKS = [
    check_before_the_function,
    check_agreement_after_a_failure,
    check_runs_of_some_ranks,
    check_before_its_operations,
    check_the_end_of_data,
    check_mismatch_amid_many,
    check_failures_of_all,
    check_the_same_run,
    check_another_run,
    check_other_lines,
    check_one_more,
    check_backward,
]


@pytest.mark.parametrize("check", CHECKS)
def test_on_ranks(ranks: Any, check: Any) -> None:
    ranks(check)


@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 9))]
)
def test_random_failures(ranks: Any, seed: int) -> None:
    ranks(check_random_failures, seed, 60 if seed < 3 else 300)


@pytest.mark.parametrize("check", [check_mismatch_amid_many, check_failures_of_all])
def test_by_python(negotiated: Any, check: Any) -> None:
    negotiated(check)


def test_functions_that_a_rank_leaves_out(short_lived: Ranks) -> None:
    for ended, text in short_lived(check_other_functions):
        assert ended
        assert "Mismatched allreduce in TensorFlow graphs" in text
        assert "The ranks are in different functions" in text


def test_threads_with_names(two: Ranks) -> None:
    assert two(check_threads, True) == [[], []]


def test_threads_without_names(short_lived: Ranks) -> None:
    """They may also meet as they should. What they never do is to go on with wrong sums."""
    for errors in short_lived(check_threads, False):
        assert all("one at a time" in text or "different functions" in text for text in errors), errors
