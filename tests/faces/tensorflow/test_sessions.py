"""slipstream.tensorflow in sessions of TensorFlow 1, which run operations in an order that differs between ranks."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import slipstream.tensorflow as hvd  # noqa: E402
from faces.tensorflow.given_up import give_up, until  # noqa: E402
from slipstream.faces.tensorflow import graph_calls  # noqa: E402

v1 = tf.compat.v1
COUNT = 6


def in_session(build: Callable[[], Any]) -> tuple[Any, Any]:
    """What ``build`` returns, and a session of its graph in which variables have values. It has one thread alone."""
    config = v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
    with tf.Graph().as_default() as graph:
        fetches = build()
        session = v1.Session(graph=graph, config=config)
        session.run(v1.global_variables_initializer())
    return fetches, session


def check_any_order() -> None:
    """Operations without a name, called by threads in opposite orders."""

    def build() -> list[Any]:
        ones = tf.ones([2])
        return [hvd.allreduce(ones * float(2**n), op=hvd.Sum) for n in range(COUNT)]

    fetches, session = in_session(build)
    for _ in range(5):
        with ThreadPoolExecutor(COUNT) as pool:
            numbers = list(range(COUNT))[:: -1 if hvd.rank() else 1]
            calls = {n: pool.submit(session.run, fetches[n]) for n in numbers}
        for n, call in calls.items():
            np.testing.assert_array_equal(call.result(), np.full(2, 2.0**n * hvd.size()))


def check_at_once() -> None:
    """All kinds of operations in one run."""
    rank, size = hvd.rank(), hvd.size()

    def build() -> list[Any]:
        x = tf.fill([size, 2], float(rank))
        return [
            hvd.allreduce(x, op=hvd.Sum),
            hvd.grouped_allreduce([x, x], op=hvd.Max)[1],
            hvd.allgather(x[:1]),
            hvd.broadcast(x, 1),
            hvd.alltoall(x),
            hvd.reducescatter(x, op=hvd.Sum),
            hvd.allreduce(tf.IndexedSlices(x, tf.range(size)), op=hvd.Sum).values,
        ]

    fetches, session = in_session(build)
    total, everyone = sum(range(size)), np.repeat(np.arange(float(size))[:, None], 2, 1)
    for _ in range(5):
        got = session.run(fetches)
        wanted = [
            np.full((size, 2), total),
            np.full((size, 2), size - 1),
            everyone,
            np.ones((size, 2)),
            everyone,
            np.full((1, 2), total),
            np.repeat(everyone, size, 0),
        ]
        for one, want in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one, want)


def check_gradients() -> None:
    """Each gradient is an operation of its own, and all of them run at once."""
    size = hvd.size()

    def build() -> list[Any]:
        xs = [tf.ones([2]) * float(n) for n in range(COUNT)]
        gathered = hvd.grouped_allgather(xs)
        sums = [hvd.allreduce(x, op=hvd.Sum) for x in xs]
        ys = [tf.range(2.0 * size) + float(n) for n in range(COUNT)]
        grads = [v1.gradients(one, x, y)[0] for one, x, y in zip(gathered, xs, ys, strict=True)]
        return grads + [v1.gradients(one, x, tf.ones([2]))[0] for one, x in zip(sums, xs, strict=True)]

    fetches, session = in_session(build)
    for _ in range(3):
        got = session.run(fetches)
        for n in range(COUNT):
            np.testing.assert_array_equal(got[n], np.arange(2.0) + 2 * hvd.rank() + n)
            np.testing.assert_array_equal(got[COUNT + n], np.full(2, size))


def check_gradient_of_broadcast() -> None:
    """All ranks take part in it, though only that of the root is no constant."""
    for root in range(hvd.size()):

        def build(root: int = root) -> Any:
            x = tf.ones([2])
            return v1.gradients(hvd.broadcast(x, root), x, tf.fill([2], float(hvd.rank())))[0]

        fetches, session = in_session(build)
        mean = sum(range(hvd.size())) / hvd.size() if hvd.rank() == root else 0.0
        np.testing.assert_array_equal(session.run(fetches), np.full(2, mean, np.float32))


def check_in_loop() -> None:
    """Rounds of a loop run one after the other, and have one operation."""

    def build() -> Any:
        def step(n: Any) -> Any:
            return hvd.allreduce(tf.fill([2], tf.cast(n, tf.float32)), op=hvd.Sum)

        return tf.map_fn(step, tf.range(5), fn_output_signature=tf.float32, parallel_iterations=1)

    fetches, session = in_session(build)
    want = np.repeat(np.arange(5.0)[:, None], 2, 1) * hvd.size()
    np.testing.assert_array_equal(session.run(fetches), want)


def check_variables() -> None:
    def build() -> list[Any]:
        rank = float(hvd.rank())
        for resource in (False, True):
            v1.get_variable(f"x{resource}", initializer=tf.constant([rank, 2.0]), use_resource=resource)
        new = hvd.broadcast_(v1.global_variables(), root_rank=1)
        return [new, hvd.broadcast_global_variables(0), v1.global_variables()]

    (new, operation, variables), session = in_session(build)
    assert all(session.run(one).tolist() == [1.0, 2.0] for one in new)
    assert session.run(operation) is None
    assert [one.tolist() for one in session.run(variables)] == [[1.0, 2.0]] * 2


MISMATCH = r"Mismatched .*(was called by rank 0.*by rank.* 1|rank 0 with .*rank 1 with)"


def check_mismatch() -> None:
    """The error is that of Horovod, on all ranks, and the job goes on."""
    calls: list[Callable[[], Any]] = [
        lambda: hvd.allreduce(tf.ones([2 + hvd.rank()])),
        lambda: hvd.allgather(tf.ones([2, 2 + hvd.rank()])),
        lambda: hvd.broadcast(tf.ones([2]), root_rank=min(hvd.rank(), 1)),
        lambda: hvd.alltoall(tf.ones([hvd.size()], tf.int32 if hvd.rank() else tf.float32)),
        lambda: hvd.reducescatter(tf.ones([2], tf.int32 if hvd.rank() else tf.float32)),
    ]
    for call in calls:
        fetches, session = in_session(call)
        with pytest.raises(tf.errors.FailedPreconditionError, match=MISMATCH):
            session.run(fetches)
        with pytest.raises(tf.errors.FailedPreconditionError, match=MISMATCH):
            tf.function(call)()
    fetches, session = in_session(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum))
    assert session.run(fetches).tolist() == [hvd.size()] * 2


def check_wrong_splits() -> None:
    """An argument that only its values show to be wrong: InvalidArgumentError in all ways of running."""

    def call() -> Any:
        return hvd.alltoall(tf.ones([hvd.size() + 1]))

    fetches, session = in_session(call)
    for run in (call, tf.function(call), lambda: session.run(fetches)):
        with pytest.raises(tf.errors.InvalidArgumentError):
            run()
    with pytest.raises(ValueError, match="splits"):
        call()


def check_not_in_the_set() -> None:
    first = hvd.add_process_set([0])
    if hvd.rank():
        calls = [
            lambda: hvd.allreduce(tf.ones(4), process_set=first),
            lambda: hvd.allgather(tf.ones(4), process_set=first),
            lambda: hvd.broadcast(tf.ones(4), 0, process_set=first),
        ]
        for call in calls:
            for error in (tf.errors.InvalidArgumentError, ValueError):
                with pytest.raises(error, match=r"rank . is not in ProcessSet"):
                    call()
    hvd.remove_process_set(first)


def check_no_thread() -> None:
    """Where the system gives no thread for an operation, its run says so, and nothing of it is left."""
    fetches, session = in_session(lambda: hvd.allgather(tf.ones(2)))
    refused = RuntimeError("can't start new thread")
    with (
        mock.patch.object(threading.Thread, "start", side_effect=refused),
        pytest.raises(tf.errors.UnknownError, match="start new thread"),
    ):
        session.run(fetches)
    hvd.barrier()
    assert session.run(fetches).tolist() == [1] * 2 * hvd.size()
    until(lambda: not graph_calls._results, "nothing of it is left")  # its thread may be about to forget it


def check_cancelled() -> None:
    """A run that is given up does not wait; what it has begun goes on, and its results are forgotten."""
    fetches, session = in_session(lambda: hvd.allgather(tf.ones(2)))
    if hvd.rank() == 0:
        give_up(session, fetches)
    hvd.barrier()
    if hvd.rank():
        assert session.run(fetches).tolist() == [1] * 2 * hvd.size()
    hvd.barrier()
    for _ in range(3):
        assert session.run(fetches).tolist() == [1] * 2 * hvd.size()
    until(lambda: not graph_calls._results, "nothing of it is left")  # its thread may be about to forget it


def check_given_up_and_called_again() -> None:
    """The error names the rank that has gone on, and the one that it has left behind."""
    total, session = in_session(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum))
    if hvd.rank() == 0:
        give_up(session, total)
        with pytest.raises(tf.errors.InvalidArgumentError, match="with the same name") as caught:
            session.run(total)
        text = caught.value.message
        assert re.search(r"Rank 0 called the first \d+\.\d s ago, and rank 1 has not called it yet", text)
        assert "failed on rank 0 while other ranks went on, end the program on all ranks" in text
    hvd.barrier()
    if hvd.rank():
        assert session.run(total).tolist() == [hvd.size()] * 2
    hvd.barrier()
    assert session.run(total).tolist() == [hvd.size()] * 2


def check_lost_in_monitored_session() -> None:
    """It makes its session anew for ever after AbortedError and UnavailableError, as those of lost servers."""
    with tf.Graph().as_default():
        v1.train.create_global_step()
        fetches = [hvd.allreduce(tf.ones(2)), hvd.allgather(tf.ones(2))]
        with v1.train.MonitoredTrainingSession() as session:
            session.run(fetches)
            if hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            for one in fetches:
                with pytest.raises(tf.errors.UnknownError, match="rank 1"):
                    session.run(one)


CHECKS = [
    check_any_order,
    check_at_once,
    check_gradients,
    check_gradient_of_broadcast,
    check_in_loop,
    check_variables,
    check_mismatch,
    check_wrong_splits,
    check_not_in_the_set,
    check_no_thread,
    check_cancelled,
]


@pytest.mark.parametrize("check", CHECKS)
def test_on_ranks(ranks: Any, check: Any) -> None:
    ranks(check)


@pytest.mark.parametrize("check", [*CHECKS, check_given_up_and_called_again])
def test_by_python(negotiated: Any, check: Any) -> None:
    negotiated(check)


def test_a_lost_rank_in_a_monitored_session(three: Any) -> None:
    three(check_lost_in_monitored_session, dying=[1])
