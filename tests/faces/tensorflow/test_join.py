"""Ranks that have joined, beside native operations in the graphs of the others."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import slipstream.tensorflow as hvd  # noqa: E402
from faces.rank_jobs import Ranks  # noqa: E402
from faces.tensorflow.conftest import QUIET, WORKER  # noqa: E402

v1 = tf.compat.v1
OPS = [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product]
DTYPES = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
DTYPES += ["float64", "float32", "float16", "bfloat16"]


def steps_of(rank: int) -> int:
    """Rank 1 has none."""
    return (3, 0, 6)[rank % 3]


def ranks_at(step: int) -> list[int]:
    return [rank for rank in range(hvd.size()) if steps_of(rank) > step]


def last_of_all() -> int:
    return max(range(hvd.size()), key=steps_of)


def check_uneven() -> None:
    """Functions with all kinds of operations, twice: the second time all lines are known."""

    @tf.function
    def step(x: Any) -> Any:
        total = hvd.allreduce(x, op=hvd.Sum)
        several = hvd.grouped_allreduce([x, x + 1, tf.ones([50_000]) * x[0]], op=hvd.Sum, name="several")
        mean = hvd.allreduce(total * 0 + x)
        sent = hvd.broadcast(x, root_rank=last_of_all())
        return total, several, mean, sent, tf.reduce_sum(hvd.allgather(x[:1]))

    for _ in range(2):
        for number in range(steps_of(hvd.rank())):
            total, several, mean, sent, gathered = step(tf.fill([4], float(hvd.rank() + 1)))
            want = float(sum(rank + 1 for rank in ranks_at(number)))
            np.testing.assert_array_equal(total, np.full(4, want))
            np.testing.assert_array_equal(several[1], np.full(4, want + len(ranks_at(number))))
            np.testing.assert_array_equal(several[2], np.full(50_000, want))
            np.testing.assert_allclose(mean, np.full(4, want / hvd.size()))
            np.testing.assert_array_equal(sent, np.full(4, last_of_all() + 1))
            assert gathered.numpy() == want
        assert hvd.join().numpy() == last_of_all()
    after = tf.function(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum))
    np.testing.assert_array_equal(after(), np.full(2, hvd.size()))


def check_neutral(dtype: str) -> None:
    """What a rank brings that has joined changes nothing, alone and beside others in one message."""
    x = tf.cast([1, 2, 3], dtype)
    if not dtype.startswith("u"):
        x = tf.concat([x, -x], 0)

    @tf.function
    def step() -> Any:
        return [(hvd.allreduce(x, op=op), hvd.grouped_allreduce([x, x], op=op)[1]) for op in OPS]

    if hvd.rank():
        others, given = hvd.size() - 1, np.asarray(x, np.float64)
        mean = others * given / hvd.size()
        want = [
            others * given,
            mean if dtype.startswith(("f", "b")) else np.trunc(mean),
            given,
            given,
            given**others,
        ]
        for results, one in zip(step(), want, strict=True):
            for got in results:
                np.testing.assert_allclose(np.asarray(got, np.float64), one, rtol=1e-2)
    assert hvd.join().numpy() > 0


def check_bool_and_complex() -> None:
    @tf.function
    def step() -> Any:
        truth = tf.constant([True, False])
        number = tf.constant([1 + 2j], tf.complex64)
        found = [hvd.allreduce(truth, op=op) for op in (hvd.Min, hvd.Max)]
        return [*found, hvd.allreduce(number, op=hvd.Sum), hvd.allreduce(number, op=hvd.Product)]

    if hvd.rank():
        low, high, total, product = (one.numpy().tolist() for one in step())
        others = hvd.size() - 1
        assert low == high == [True, False]
        assert total == [others * (1 + 2j)]
        assert product == [(1 + 2j) ** others]
    hvd.join()


def check_new_lines() -> None:
    """Names that the ranks which have joined never meet themselves, and forms that differ from step to step."""
    for turn in range(2):
        if hvd.rank() == 0:
            for number in range(4):
                name = f"new {turn} {number}"
                run = tf.function(
                    lambda x, name=name: hvd.allreduce(x, op=hvd.Sum, name=name)  # type: ignore[misc]
                )
                for size in (2, 5, 2):
                    np.testing.assert_array_equal(run(tf.ones([size])), np.ones(size))
        assert hvd.join().numpy() == 0
        both = tf.function(lambda: hvd.allreduce(tf.ones(3), op=hvd.Sum, name="new 0 0"))
        np.testing.assert_array_equal(both(), np.full(3, hvd.size()))


def check_sessions() -> None:
    """Operations of a session run in any order, each on a line of its own; a rank that is alone runs some of them."""
    with tf.Graph().as_default(), v1.Session() as session:
        found = [hvd.allreduce(tf.fill([2], float(i)), op=hvd.Sum) for i in range(6)]
        join = hvd.join()
        for number in range(steps_of(hvd.rank())):
            live = len(ranks_at(number))
            for i, one in enumerate(session.run(found if live > 1 else found[: number % 6])):
                np.testing.assert_array_equal(one, np.full(2, i * live))
        assert session.run(join) == last_of_all()
        for i, one in enumerate(session.run(found[::-1])):
            np.testing.assert_array_equal(one, np.full(2, (5 - i) * hvd.size()))


def check_loops_and_gradients() -> None:
    @tf.function
    def step(n: Any) -> Any:
        w = tf.ones([3])
        with tf.GradientTape() as tape:
            tape.watch(w)
            y = tf.constant(0.0)
            for _ in tf.range(n):
                y += tf.reduce_sum(hvd.allreduce(w, op=hvd.Sum))
        inner = tape.gradient(y, w)
        with hvd.DistributedGradientTape(tf.GradientTape()) as outer:
            outer.watch(w)
            z = tf.reduce_sum(w * 2.0)
        return y, inner, outer.gradient(z, w)

    step(tf.constant(1))  # a rank takes part in steps of optimizers that it has
    for number in range(steps_of(hvd.rank())):
        y, inner, outer = step(tf.constant(5))
        live = len(ranks_at(number))
        assert y.numpy() == 15.0 * live
        np.testing.assert_array_equal(inner, np.full(3, 5.0 * live))
        np.testing.assert_allclose(outer, np.full(3, 2.0 * live / hvd.size()), rtol=1e-6)
    assert hvd.join().numpy() == last_of_all()


def check_eager_amid() -> None:
    step = tf.function(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum))
    for number in range(steps_of(hvd.rank())):
        live = np.full(2, len(ranks_at(number)))
        for call in (step, lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum), step):
            np.testing.assert_array_equal(call(), live)
    assert hvd.join().numpy() == last_of_all()


def check_root_has_joined() -> None:
    if hvd.rank():
        for _ in range(2):
            run = tf.function(lambda: hvd.broadcast(tf.ones(2), root_rank=0, name="from 0"))
            with pytest.raises(
                tf.errors.FailedPreconditionError,
                match=r"from 0 of .* cannot do without rank 0, which has joined",
            ):
                run()
        run = tf.function(lambda: hvd.broadcast(tf.fill([2], float(hvd.rank())), root_rank=1))
        np.testing.assert_array_equal(run(), np.ones(2))
    assert hvd.join().numpy() > 0


def check_mismatch() -> None:
    """Of ranks that have not joined; the job goes on, and the joins."""
    if hvd.rank():
        for _ in range(2):
            run = tf.function(lambda: hvd.allreduce(tf.ones([hvd.rank()])))
            with pytest.raises(
                tf.errors.FailedPreconditionError, match=r"Mismatched allreduce.*rank 1 with.*rank 2 with"
            ):
                run()
        run = tf.function(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum))
        np.testing.assert_array_equal(run(), np.full(2, 2))
    assert hvd.join().numpy() > 0


def check_sets() -> None:
    """Operations of a smaller set go on beside ranks that have joined and are not in it."""
    pair = hvd.add_process_set([1, 2])
    if hvd.rank():
        run = tf.function(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum, process_set=pair, name="of the pair"))
        for _ in range(3):
            np.testing.assert_array_equal(run(), np.full(2, 2))
    hvd.join()
    hvd.remove_process_set(pair)


def check_amid_join(told: str) -> None:
    """An operation of another thread, while this rank is in join, is an error."""
    run = tf.function(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum))
    run()
    if hvd.rank() == 0:
        joins = threading.Thread(target=hvd.join)
        joins.start()
        error = None
        while error is None:
            error = _error_of(run)
        assert "waits in join" in str(error)
        Path(told).touch()
        joins.join()
    else:
        while not Path(told).exists():
            run()
        hvd.join()


def _error_of(run: Any) -> Any:
    try:
        run()
    except tf.errors.OpError as error:
        return error
    return None


def check_lost() -> None:
    """The error of a rank that is lost reaches those that have joined, too."""
    run = tf.function(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum))
    run()
    if hvd.rank():
        for _ in range(3):
            np.testing.assert_array_equal(run(), np.full(2, 2))
    if hvd.rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(tf.errors.OpError, match="rank 2"):
            hvd.join() if hvd.rank() == 0 else run()


CHECKS = [
    check_uneven,
    check_bool_and_complex,
    check_new_lines,
    check_sessions,
    check_loops_and_gradients,
    check_eager_amid,
    check_root_has_joined,
]


@pytest.mark.parametrize("check", CHECKS)
def test_on_ranks(ranks: Any, check: Any) -> None:
    ranks(check)


def test_an_operation_amid_join(ranks: Any, tmp_path: Path) -> None:
    ranks(check_amid_join, str(tmp_path / "told"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_changes_nothing(ranks: Any, dtype: str) -> None:
    ranks(check_neutral, dtype)


@pytest.mark.parametrize("check", [check_mismatch, check_sets])
def test_on_three(three: Any, check: Any) -> None:
    three(check)


def test_a_rank_that_is_killed(three: Any) -> None:
    three(check_lost, dying=[2])


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Each rank of this job is a host of its own."""
    ranks = Ranks(3, tmp_path_factory.mktemp("hosts"), hosts=True, worker=WORKER, environment=QUIET)
    yield ranks
    ranks.stop()


@pytest.mark.parametrize("check", [check_uneven, check_new_lines, check_sessions])
def test_between_hosts(hosts: Ranks, check: Any) -> None:
    hosts(check)
