"""Steps that fail where it is not known which operations they would have come to: right sums, or the job ends."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import slipstream.tensorflow as hvd  # noqa: E402
from faces.rank_jobs import Ranks  # noqa: E402
from faces.tensorflow.failing_steps import until_the_end  # noqa: E402
from slipstream.faces.tensorflow import failed_calls  # noqa: E402

STEPS = 6


def check_another_trace() -> None:
    """Rank 0 alone evaluates, by a trace that has no operation. Its data ends, and then a check of it fails."""

    @tf.function
    def step(batches: Any, good: Any, training: bool) -> Any:
        x = tf.cast(next(batches), tf.float32)
        tf.debugging.Assert(good, ["check"])
        return hvd.allreduce(x, op=hvd.Sum) if training else x

    yes, no = tf.constant(True), tf.constant(False)
    data = iter(tf.data.Dataset.range(1, STEPS + 1))
    for number in range(1, STEPS + 1):
        assert step(data, yes, True).numpy() == number * hvd.size()
        if hvd.rank() == 0 and number in (2, 4):
            wrong = tf.errors.OutOfRangeError if number == 2 else tf.errors.InvalidArgumentError
            test = iter(tf.data.Dataset.range(2))
            good = [yes, yes, yes] if number == 2 else [no]
            for one in good[:-1]:
                step(test, one, False)
            with pytest.raises(wrong):
                step(test, good[-1], False)


def check_concrete_function() -> None:
    """A concrete function whose arguments do not fit."""
    step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum)).get_concrete_function(
        tf.TensorSpec([], tf.float32)
    )
    for number in range(1, STEPS + 1):
        x = tf.constant(float(number))
        if number != 2:
            assert step(x).numpy() == number * hvd.size()
        elif hvd.rank() == 0:
            with pytest.raises(TypeError):
                step(None)
        else:
            with pytest.raises(tf.errors.FailedPreconditionError, match="rank 0 does not take part"):
                step(x)


def check_function_without_operations() -> None:
    """It cannot be traced on rank 0, where Python does the same. That is nobody else's business."""
    step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    traced = []

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
    def other(x: Any) -> Any:
        traced.append(x)
        raise KeyError("cannot be traced")

    for number in range(1, STEPS + 1):
        assert step(tf.constant(float(number))).numpy() == number * hvd.size()
        if hvd.rank() == 0:
            with pytest.raises(KeyError, match="cannot be traced"):
                other(tf.constant(1.0))
            assert len(traced) == number


def check_functions_of_one_name() -> None:
    """Rank 0 cannot trace a method, and a function, that have the name, and partly the code, of what all ranks call."""

    class Trainer(tf.Module):  # type: ignore[misc]
        @tf.function
        def step(self, x: Any) -> Any:
            return hvd.allreduce(x, op=hvd.Sum)

    class Checker(tf.Module):  # type: ignore[misc]
        @tf.function
        def step(self, x: Any) -> Any:
            raise KeyError("cannot be traced")

    def made(good: bool) -> Any:
        @tf.function
        def step(x: Any) -> Any:
            if not good:
                raise KeyError("cannot be traced")
            return hvd.allreduce(x, op=hvd.Sum)

        return step

    pairs = [(Trainer().step, Checker().step), (made(True), made(False))]
    for step, other in pairs:
        for number in range(1, STEPS + 1):
            if hvd.rank() == 0:
                with pytest.raises(KeyError, match="cannot be traced"):
                    other(tf.constant(1.0))
            assert step(tf.constant(float(number))).numpy() == number * hvd.size()


def check_objects_of_one_base() -> None:
    """Rank 0 alone calls an object that cannot be traced. Others are called by the same code, that of a base class."""

    class Base(tf.Module):  # type: ignore[misc]
        def __call__(self, x: Any) -> Any:
            return self.run(x)

    class Bad(Base):
        def run(self, x: Any) -> Any:
            raise ValueError("cannot be traced")

    class Good(Base):
        def run(self, x: Any) -> Any:
            return hvd.allreduce(x, op=hvd.Sum)

    spec, x = tf.TensorSpec([], tf.float32), tf.constant(1.0)
    before = tf.function(Good()).get_concrete_function(spec)
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="cannot be traced"):
            tf.function(Bad())(x)
        with pytest.raises(ValueError, match="cannot be traced"):
            tf.function(Bad()).get_concrete_function(spec)
    for step in (before, tf.function(Good()), tf.function(Good()).get_concrete_function(spec)):
        assert step(x).numpy() == hvd.size()


def check_traces_that_fail() -> None:
    """All ranks ask for one that the arguments do not fit; rank 0 alone, for one of a function without operations."""
    step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    local = tf.function(lambda x: x + 1)
    x = tf.constant(1.0)
    assert step(x).numpy() == hvd.size()
    for _ in range(2):
        with pytest.raises(TypeError):
            step.get_concrete_function()
        if hvd.rank() == 0:
            with pytest.raises(TypeError):
                local.get_concrete_function()
        assert step(x).numpy() == hvd.size()


def check_datasets_that_cannot_be_traced() -> None:
    """TensorFlow makes a function for each of them, and asks for its trace. None of them belongs to a step."""

    def untraceable(x: Any) -> Any:
        raise ValueError("cannot be traced")

    before = len(failed_calls._untraced)
    for _ in range(5):
        with pytest.raises(ValueError, match="cannot be traced"):
            tf.data.Dataset.range(3).map(untraceable)
    assert len(failed_calls._untraced) == before


def check_threads_that_fail() -> None:
    """Two threads run functions with names of their own; a step of one of them fails on all ranks."""

    def made(number: int) -> Any:
        @tf.function
        def step(x: Any, good: Any) -> Any:
            tf.debugging.Assert(good, ["check"])
            return hvd.allreduce(x, op=hvd.Sum, name=f"of {number}")

        return step

    functions = [made(number) for number in range(2)]
    for function in functions:
        function(tf.constant(1.0), tf.constant(True))
    wrong: list[str] = []

    def run(number: int) -> None:
        for turn in range(100):
            good = number == 1 or turn % 10 != 5
            try:
                found = functions[number](tf.constant(float(turn)), tf.constant(good)).numpy()
                assert good
                assert found == turn * hvd.size()
            except tf.errors.InvalidArgumentError:
                assert not good
            except BaseException as error:
                wrong.append(f"{turn}: {type(error).__name__}: {error}")
                return

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def check_trace(fails_in: int) -> str:
    """Rank 0 cannot trace the function for a batch, and another function has run meanwhile."""

    @tf.function
    def other(x: Any) -> Any:
        return x + 1

    @tf.function
    def step(x: Any) -> Any:
        with tf.init_scope():
            other(tf.ones([]))
        return tf.reduce_sum(hvd.allreduce(tf.matmul(x, tf.ones([4, 1])), op=hvd.Sum))

    def call(number: int) -> Any:
        wide = 5 if hvd.rank() == 0 and number == fails_in else 4
        return step(tf.fill([1, wide], float(number))).numpy()

    return until_the_end(call, 4.0)


def check_first_trace() -> str:
    """It has no trace yet."""
    return check_trace(1)


def check_later_trace() -> str:
    """It has one, but this batch would have had its own."""
    return check_trace(3)


def check_second_trace() -> str:
    """The function makes a variable, so its first call traces it twice; rank 0 fails in the second trace."""
    made: list[Any] = []
    traces = []

    @tf.function
    def step(x: Any) -> Any:
        traces.append(x)
        if not made:
            made.append(tf.Variable(0.0))
        if len(traces) == 2 and hvd.rank() == 0:
            raise ValueError("cannot be traced")
        return hvd.allreduce(x, op=hvd.Sum) + made[0]

    return until_the_end(lambda number: step(tf.constant(float(number))).numpy())


def check_made_anew() -> str:
    """Each step makes its function; rank 0 cannot trace the third one."""

    def call(number: int) -> Any:
        @tf.function
        def step(x: Any) -> Any:
            if number == 3 and hvd.rank() == 0:
                raise ValueError("cannot be traced")
            return hvd.allreduce(x, op=hvd.Sum)

        return step(tf.constant(float(number))).numpy()

    return until_the_end(call)


def check_objects_made_anew() -> str:
    """Each step calls an object of a class of its own; rank 0 cannot trace the third one."""

    def call(number: int) -> Any:
        class Step:
            def __call__(self, x: Any) -> Any:
                if number == 3 and hvd.rank() == 0:
                    raise ValueError("cannot be traced")
                return hvd.allreduce(x, op=hvd.Sum)

        return tf.function(functools.partial(Step()))(tf.constant(float(number))).numpy()

    return until_the_end(call)


def check_concrete_functions(anew: bool) -> str:
    """Rank 0 cannot make the concrete function of the third step."""
    bad = []

    def step(x: Any) -> Any:
        if bad:
            raise ValueError("cannot be traced")
        return tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum))

    function = tf.function(step)

    def call(number: int) -> Any:
        bad[:] = [number] if number == 3 and hvd.rank() == 0 else []
        of = tf.function(lambda x: step(x)) if anew else function
        concrete = of.get_concrete_function(tf.TensorSpec([1] if number < 3 else [None]))
        return concrete(tf.constant([float(number)])).numpy()

    return until_the_end(call)


def check_concrete_functions_made_anew() -> str:
    return check_concrete_functions(True)


def check_concrete_functions_of_one() -> str:
    return check_concrete_functions(False)


def check_then_concrete() -> str:
    """Rank 0 cannot trace the function. All go on with concrete functions of it."""

    @tf.function
    def step(x: Any) -> Any:
        if x.shape[0] == 5:
            raise ValueError("cannot be traced")
        return hvd.allreduce(x[0], op=hvd.Sum)

    def call(number: int) -> Any:
        x = tf.fill([5 if hvd.rank() == 0 and number == 1 else 4], float(number))
        return (step if number == 1 else step.get_concrete_function(x))(x).numpy()

    return until_the_end(call)


def check_end_of_data(in_condition: bool) -> str:
    """The data of rank 0 end inside the function, and it goes on with other data in place of a join."""
    variable = tf.Variable(0.0)

    @tf.function
    def step(batches: Any, often: Any) -> Any:
        batch = tf.cast(next(batches), tf.float32)
        if in_condition:
            return hvd.allreduce(batch, op=hvd.Sum) if often else batch
        tape = hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum)
        with tape:
            loss = variable * batch
        return tape.gradient(loss, variable)

    def call(number: int) -> Any:
        empty = hvd.rank() == 0 and number == 3
        data = tf.data.Dataset.range(number, number if empty else number + 1)
        with contextlib.suppress(tf.errors.OutOfRangeError):
            return step(iter(data), tf.constant(True)).numpy()
        return float(number * hvd.size())

    return until_the_end(call)


def check_two_reductions(same: bool) -> str:
    """Two tapes in one step, of the same variable or of two; rank 0 alone fails between them."""
    first, second = tf.Variable(0.0), tf.Variable(0.0)

    @tf.function
    def step(x: Any, good: Any) -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as tape:
            loss = first * x
        one = tape.gradient(loss, first)
        with tf.control_dependencies([one]):
            check = tf.debugging.Assert(good, ["bad"])
        other = first if same else second
        tape = hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum)
        with tape, tf.control_dependencies([check]):
            loss = other * (2 * x)
        return one, tape.gradient(loss, other)

    def call(number: int) -> Any:
        good = hvd.rank() != 0 or number != 3
        one, other = step(tf.constant(float(number)), tf.constant(good))
        np.testing.assert_array_equal(other, 2 * one.numpy())
        return one.numpy()

    return until_the_end(call)


def check_jobs(kind: str) -> None:
    """What has failed on rank 0 alone in one job is nothing to the next one."""

    @tf.function
    def traced(x: Any) -> Any:
        return tf.reduce_sum(hvd.allreduce(tf.matmul(x, tf.ones([4, 1])), op=hvd.Sum))

    @tf.function
    def conditional(x: Any, good: Any, often: Any) -> Any:
        tf.debugging.Assert(good, ["check"])
        return hvd.allreduce(x, op=hvd.Sum) if often else x

    yes, no = tf.constant(True), tf.constant(False)
    with contextlib.suppress(ValueError, tf.errors.InvalidArgumentError):
        if kind == "condition":
            conditional(tf.ones([]), no if hvd.rank() == 0 else yes, no)
        elif hvd.rank() == 0:
            traced(tf.ones([1, 5]))
    hvd.shutdown()
    hvd.init()
    for number in range(1, 4):
        x = float(number)
        step = traced(tf.fill([1, 4], x / 4)) if kind == "trace" else conditional(tf.constant(x), yes, yes)
        np.testing.assert_array_equal(step.numpy(), number * hvd.size())


def check_condition() -> str:
    """An operation in a condition that is seldom true; rank 0 alone fails behind its last operation."""

    @tf.function
    def step(x: Any, seldom: Any, good: Any) -> Any:
        first = hvd.allreduce(x, op=hvd.Sum)
        found = hvd.allreduce(x, op=hvd.Sum, name="in a condition") if seldom else first
        with tf.control_dependencies([found]):
            tf.debugging.Assert(good, ["check"])
        return tf.identity(found)

    def call(number: int) -> Any:
        good = hvd.rank() != 0 or number != 2
        return step(tf.constant(float(number)), tf.constant(number % 4 == 0), tf.constant(good)).numpy()

    return until_the_end(call)


def check_numbers_in_names() -> str:
    """Two functions whose names differ by a number; rank 0 leaves out one of them once."""

    @tf.function
    def step_1(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    @tf.function
    def step_2(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    def call(number: int) -> Any:
        x = tf.constant(float(number))
        first = step_1(x).numpy()
        return first if hvd.rank() == 0 and number == 2 else step_2(x).numpy()

    return until_the_end(call)


@pytest.mark.parametrize(
    "check",
    [
        check_another_trace,
        check_concrete_function,
        check_function_without_operations,
        check_functions_of_one_name,
        check_objects_of_one_base,
        check_traces_that_fail,
        check_datasets_that_cannot_be_traced,
        check_threads_that_fail,
    ],
)
def test_the_job_goes_on(ranks: Any, check: Any) -> None:
    ranks(check)


@pytest.mark.parametrize(
    "check",
    [
        check_first_trace,
        check_later_trace,
        check_second_trace,
        check_made_anew,
        check_objects_made_anew,
        check_concrete_functions_of_one,
        check_concrete_functions_made_anew,
        check_then_concrete,
        check_condition,
    ],
)
def test_the_job_ends(short_lived: Ranks, check: Any) -> None:
    for text in short_lived(check):
        assert "a step has failed on rank 0, and not on all others" in text, text


def check_a_function_that_could_not_be_made() -> None:
    """Its object is there, without a name, as long as somebody keeps the error."""

    def step(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum, name="step")

    def untraceable(x: Any) -> Any:
        raise ValueError("this cannot be traced")

    with pytest.raises(TypeError) as kept:
        tf.function(step, input_signature=[1])
    never = tf.function(untraceable)
    for _ in range(3):
        with pytest.raises(ValueError, match="cannot be traced"):
            never(tf.ones(3))
    assert len(failed_calls._untraced) == 1
    assert failed_calls._untraced[0].calls == 3
    assert (tf.function(step)(tf.ones(3)).numpy() == hvd.size()).all()
    assert kept.value is not None


def test_a_function_that_could_not_be_made(short_lived: Ranks) -> None:
    short_lived(check_a_function_that_could_not_be_made)


@pytest.mark.parametrize("in_condition", [False, True])
def test_data_that_end_without_a_join(short_lived: Ranks, in_condition: bool) -> None:
    for text in short_lived(check_end_of_data, in_condition):
        assert "of rank 0 has failed" in text or "has failed on rank 0" in text, text


@pytest.mark.parametrize("same", [True, False])
def test_a_failure_between_two_reductions(short_lived: Ranks, same: bool) -> None:
    for text in short_lived(check_two_reductions, same):
        assert "a step of rank 0 has failed before it came to its gradients" in text, text


@pytest.mark.parametrize("kind", ["trace", "condition"])
def test_the_next_job_begins_anew(short_lived: Ranks, kind: str) -> None:
    short_lived(check_jobs, kind)


def test_functions_whose_names_differ_by_a_number(short_lived: Ranks) -> None:
    for text in short_lived(check_numbers_in_names):
        assert "different functions" in text, text


def check_gradients(fails_on: int) -> str:
    """A tape's gradients; rank 0, or all ranks, have a bad batch in step 3, before the gradients."""
    variable = tf.Variable(0.0)

    @tf.function
    def step(x: Any, good: Any) -> Any:
        tape = hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum)
        with tape, tf.control_dependencies([tf.debugging.Assert(good, ["bad batch"])]):
            loss = variable * x
        return tape.gradient(loss, variable)

    def call(number: int) -> Any:
        bad = number == 3 and (fails_on < 0 or hvd.rank() == fails_on)
        return step(tf.constant(float(number)), tf.constant(not bad)).numpy()

    return until_the_end(call)


def test_gradients_after_a_step_that_failed_on_one_rank(short_lived: Ranks) -> None:
    for text in short_lived(check_gradients, 0):
        assert "a step of rank 0 has failed before it came to its gradients" in text, text


def test_gradients_after_a_step_that_failed_on_all_ranks(two: Ranks) -> None:
    assert two(check_gradients, -1) == ["the job has not ended"] * 2
