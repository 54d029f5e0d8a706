"""The operations of slipstream.tensorflow against what NumPy computes from all ranks' tensors: eager and in graphs."""

from __future__ import annotations

import os
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import slipstream  # noqa: E402
import slipstream.tensorflow as hvd  # noqa: E402
from comm.negotiation.locking import count_alone, until_locked  # noqa: E402
from slipstream.faces.tensorflow.failures import as_framework_error  # noqa: E402

FLOATS = ["float64", "float32", "float16", "bfloat16"]
INTEGERS = ["uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"]


def all_ranks(shape: tuple[int, ...], dtype: str, seed: int = 0) -> list[Any]:
    """What each rank brings, as float64 or int64; every rank can compute it."""
    made = []
    for rank in range(hvd.size()):
        generator = np.random.default_rng(1000 * seed + rank)
        if dtype in FLOATS:
            made.append(generator.integers(-24, 25, shape) / 8)  # exact in every float dtype here
        else:
            made.append(generator.integers(0 if dtype.startswith("u") else -3, 4, shape))
    return made


def expected(everyone: list[Any], op: int) -> Any:
    stacked = np.stack(everyone)
    if op == hvd.Average:
        mean = stacked.sum(0) / len(everyone)
        return mean if stacked.dtype.kind == "f" else np.trunc(mean)
    name = {hvd.Sum: "sum", hvd.Product: "prod", hvd.Min: "min", hvd.Max: "max"}[op]
    return getattr(stacked, name)(0)


def same(got: Any, want: Any, where: object) -> None:
    tolerance = 0.02 if got.dtype.name in ("float16", "bfloat16") else 1e-6
    np.testing.assert_allclose(
        np.asarray(got.numpy(), np.float64), want, rtol=tolerance, atol=1e-9, err_msg=str(where)
    )
    assert tuple(got.shape) == np.shape(want), where


def ways() -> list[Any]:
    """A call as it is, and in a graph."""
    return [lambda call: call, lambda call: tf.function(call)]


def check_allreduce() -> None:
    for dtype in FLOATS + INTEGERS:
        for shape in ((), (0,), (17,), (5, 3, 2)):
            everyone = all_ranks(shape, dtype)
            mine = tf.cast(everyone[hvd.rank()], dtype)
            for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
                if op == hvd.Product and dtype.startswith("u"):
                    continue
                got = hvd.allreduce(mine, op=op)
                assert got.dtype == mine.dtype
                want = expected(everyone, op)
                if op == hvd.Product:  # in the tensor's type
                    want = want.astype(mine.dtype.as_numpy_dtype).astype(np.float64)
                same(got, want, (dtype, shape, op))
    assert hvd.allreduce(tf.constant([True, hvd.rank() == 0]), op=hvd.Min).numpy().tolist() == [True, False]
    got = hvd.allreduce(tf.constant([1 + 2j], tf.complex64), op=hvd.Sum)
    assert got.numpy().tolist() == [hvd.size() * (1 + 2j)]


def check_allreduce_in_a_learnt_order() -> None:
    """Then each sum is one native call: of all that may be in it, and the results stay as they are."""
    cases = [
        (dtype, shape) for dtype in [*FLOATS, *INTEGERS] for shape in ((), (0,), (17,), (1025,), (5, 3, 2))
    ]
    found: list[tuple[Any, Any, object]] = []

    def step(seed: int = 0) -> None:
        for dtype, shape in cases:
            everyone = all_ranks(shape, dtype, seed)
            got = hvd.allreduce(tf.cast(everyone[hvd.rank()], dtype), op=hvd.Sum)
            found.append((got, expected(everyone, hvd.Sum), (dtype, shape, seed)))

    until_locked(step)
    alone = count_alone()
    found.clear()
    for seed in range(3):
        step(seed)
    assert len(alone) >= 3 * 5 * len(FLOATS)
    for one in found:
        same(*one)


def check_arguments() -> None:
    everyone = all_ranks((6,), "float32")
    total, x = sum(everyone), tf.constant(everyone[hvd.rank()], tf.float32)
    for way in ways():
        same(way(lambda: hvd.allreduce(x))(), total / hvd.size(), "default")
        same(way(lambda: hvd.allreduce(x, average=False))(), total, "average=False")
        call = way(lambda: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0))
        same(call(), total * 2, "scales")
        got = way(lambda: hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16))()
        assert got.dtype == tf.float32
        same(got, total, "fp16")
        grouped = way(lambda: hvd.grouped_allreduce([x, tf.cast(x, tf.float64), x[:2]], op=hvd.Sum))()
        for one, want in zip(grouped, [total, total, total[:2]], strict=True):
            same(one, want, "grouped")
        same(way(lambda: hvd.allreduce(x, op=hvd.Sum, name="a name"))(), total, "named")
    same(hvd.allreduce(tf.Variable(x), op=hvd.Sum), total, "a variable")
    same(hvd.allreduce([1.0, 2.0], op=hvd.Sum), np.array([1, 2]) * hvd.size(), "a list")
    same(hvd.allreduce(tf.ones(3), op=hvd.Adasum), np.ones(3), "parallel vectors")
    for bad in ({"average": True, "op": hvd.Sum}, {"op": 9}, {"compression": hvd.Compression.topk(0.1)}):
        with pytest.raises(ValueError):
            hvd.allreduce(x, **bad)
    with pytest.raises(TypeError, match="process_set must be a ProcessSet"):
        hvd.allreduce(x, process_set=[0])
    with pytest.raises(AttributeError, match="did you mean"):
        hvd.Compression.fp61  # noqa: B018
    same(hvd.allreduce(x, op=hvd.Sum), total, "after errors")


def check_large() -> None:
    for count in (100_000, 3_000_001):
        x = tf.range(count, dtype=tf.float32) * (hvd.rank() + 1)
        want = np.arange(count, dtype=np.float32) * sum(range(1, hvd.size() + 1))
        for way in ways():
            np.testing.assert_allclose(way(lambda one: hvd.allreduce(one, op=hvd.Sum))(x).numpy(), want)


def check_movement() -> None:
    for rows in (1, 3000):
        for way in ways():
            move(rows, way)
    with pytest.raises(ValueError, match="splits must be"):
        hvd.alltoall(tf.range(4), splits=[1] * hvd.size())
    with pytest.raises(ValueError, match="root_rank 9"):
        hvd.broadcast(tf.range(4), 9)


def move(rows: int, way: Any) -> None:
    rank, size = hvd.rank(), hvd.size()
    counts = [rows * (r + 1) for r in range(size)]
    mine = tf.fill([counts[rank], 3], float(rank))
    want = np.concatenate([np.full((n, 3), r, np.float32) for r, n in enumerate(counts)])
    same(way(lambda: hvd.allgather(mine))(), want, ("gather", rows))
    both = way(lambda: hvd.grouped_allgather([mine, tf.constant(rank)]))()
    same(both[0], want, ("grouped", rows))
    same(both[1], np.arange(size), "a scalar is one row")
    same(way(lambda: hvd.broadcast(tf.fill([rows], rank), 1))(), np.full(rows, 1), "broadcast")
    equal = tf.repeat(tf.range(size), rows) + 10 * rank
    sent = np.repeat(np.arange(size) * 10 + rank, rows)
    same(way(lambda: hvd.alltoall(equal))(), sent, "all to all")
    splits = [rows * (to + 1) for to in range(size)]
    got, received = way(lambda: hvd.alltoall(tf.fill([sum(splits)], rank), splits=splits))()
    same(got, np.repeat(np.arange(size), rows * (rank + 1)), "splits")
    same(received, np.full(size, rows * (rank + 1)), "received")
    x = tf.range(float(rows * size + 1))
    first = rank * rows + (rank > 0)
    rows_of_sum = np.arange(first, first + rows + (rank == 0)) * size
    same(way(lambda: hvd.reducescatter(x, op=hvd.Sum))(), rows_of_sum, "reduce-scatter")
    scattered = way(lambda: hvd.grouped_reducescatter([x, x], op=hvd.Average))()
    same(scattered[1], rows_of_sum / size, "grouped reduce-scatter")


def check_gradients() -> None:
    rank, size = hvd.rank(), hvd.size()
    factors = np.arange(1.0, size + 1)  # each rank hands back another gradient

    def gradient(call: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(call(x)) * (rank + 1.0)
        return tape.gradient(y, x)

    ones, x = np.ones((2, 3)), tf.ones([2, 3])
    for way in ways():
        one = way(gradient)
        same(one(lambda x: hvd.allreduce(x, op=hvd.Sum), x), ones * factors.sum(), "sum")
        same(one(lambda x: hvd.allreduce(x), x), ones * factors.mean(), "average")
        same(one(lambda x: hvd.grouped_allreduce([x])[0], x), ones * factors.mean(), "grouped")
        same(one(lambda x: hvd.allgather(x[: 1 + rank % 2]), x)[:1], ones[:1] * factors.mean(), "gather")
        same(one(lambda x: hvd.broadcast(x, 1), x), ones * factors.mean() * (rank == 1), "broadcast")
        mine = tf.ones([size, 3])
        same(one(hvd.alltoall, mine), np.tile(factors[:, None], 3), "all to all")
        owners = np.repeat(factors, [2 - r if r < 2 else 0 for r in range(size)] if size == 2 else 1)
        rows = tf.ones([len(owners), 3])
        if size == 3:
            same(one(hvd.reducescatter, rows), np.tile(owners[:, None], 3), "reduce-scatter")
    with pytest.raises(NotImplementedError, match="Average and Sum only"):
        gradient(lambda x: hvd.allreduce(x, op=hvd.Max), x)


def check_queries() -> None:
    assert hvd.size_op().numpy() == hvd.size()
    numbers = tf.function(lambda: [hvd.rank_op(), hvd.local_rank_op(), hvd.local_size_op()])()
    assert [one.numpy() for one in numbers] == [hvd.rank(), hvd.local_rank(), hvd.local_size()]
    chosen = hvd.add_process_set([0])
    assert hvd.process_set_included_op(chosen.process_set_id).numpy() == (hvd.rank() == 0)
    assert hvd.size_op(chosen.process_set_id).numpy() == 1
    hvd.remove_process_set(chosen)
    with pytest.raises(ValueError, match="no process set"):
        hvd.size_op(7)
    assert hvd.broadcast_object({"of": hvd.rank()}, root_rank=1) == {"of": 1}
    assert hvd.broadcast_object_fn(root_rank=1)(hvd.rank()) == 1
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
    hvd.barrier()


def check_variables() -> None:
    rank = float(hvd.rank())
    for way in ways():
        found = [tf.Variable([rank, 2.0]), tf.Variable(int(rank)), tf.Variable(tf.cast([rank], tf.bfloat16))]
        way(lambda found=found: hvd.broadcast_variables(found, root_rank=1) and None)()
        assert [one.numpy().tolist() for one in found] == [[1.0, 2.0], 1, [1.0]]


def check_names_in_any_order() -> None:
    order = ["a", "b", "c"][:: 1 if hvd.rank() else -1]
    # calls wait for their results, so a thread for each is what an order of their own needs
    with ThreadPoolExecutor(3) as pool:
        calls = {
            name: pool.submit(lambda n=name: hvd.allreduce(tf.fill([2], float(ord(n))), op=hvd.Sum, name=n))
            for name in order
        }
    for name, call in calls.items():
        same(call.result(), np.full(2, ord(name) * hvd.size()), name)


def check_mismatch() -> None:
    x = tf.ones([2 + hvd.rank()])
    with pytest.raises(hvd.HorovodInternalError, match=r"rank 0 with float32, \(2,\)") as caught:
        hvd.allreduce(x, op=hvd.Sum)
    assert isinstance(caught.value, slipstream.Mismatch)
    assert isinstance(caught.value, tf.errors.FailedPreconditionError)
    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"Mismatched allreduce .*rank 0 .*\(2,\).*rank 1 .*\(3,\)"
    ):
        tf.function(lambda: hvd.allreduce(x, op=hvd.Sum))()
    with pytest.raises(slipstream.Mismatch, match="root ranks"):
        hvd.broadcast(tf.ones(2), root_rank=min(hvd.rank(), 1))
    same(hvd.allreduce(tf.ones(2), op=hvd.Sum), np.full(2, hvd.size()), "the job goes on")


def check_process_set() -> None:
    pair = hvd.add_process_set([0, 2])
    if pair.included():
        same(hvd.allreduce(tf.fill([2], float(hvd.rank())), op=hvd.Sum, process_set=pair), [2, 2], "pair")
    else:
        with pytest.raises(ValueError, match="rank 1 is not in"):
            hvd.allreduce(tf.ones(2), process_set=pair)
    hvd.remove_process_set(pair)


def check_join() -> None:
    if hvd.rank():
        for _ in range(3):
            same(hvd.allreduce(tf.ones(5), op=hvd.Sum), np.full(5, hvd.size() - 1), "sum")
            same(hvd.allreduce(tf.ones(5), op=hvd.Min), np.ones(5), "min")
            same(hvd.allgather(tf.ones([2, 2])), np.ones((2 * (hvd.size() - 1), 2)), "gather")
    assert hvd.join().numpy() in range(hvd.size())


def check_lost(in_graph: bool) -> None:
    def call() -> Any:
        return hvd.allreduce(tf.ones(5), op=hvd.Sum)

    run = tf.function(call) if in_graph else call
    run()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error = tf.errors.UnknownError if in_graph else slipstream.PeerLost
    with pytest.raises(error, match="rank 1") as caught:
        run()
    assert in_graph or isinstance(caught.value, tf.errors.UnavailableError)


CHECKS = [
    check_allreduce,
    check_allreduce_in_a_learnt_order,
    check_arguments,
    check_large,
    check_movement,
    check_gradients,
    check_queries,
    check_variables,
    check_names_in_any_order,
    check_mismatch,
    check_join,
]


@pytest.mark.parametrize("check", CHECKS)
def test_on_ranks(ranks: Any, check: Any) -> None:
    ranks(check)


@pytest.mark.parametrize(
    "check", [check_arguments, check_movement, check_gradients, check_variables, check_mismatch]
)
def test_graphs_by_python(negotiated: Any, check: Any) -> None:
    negotiated(check)


def test_process_set(three: Any) -> None:
    three(check_process_set)


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_rank_that_is_killed(two: Any, in_graph: bool) -> None:
    two(check_lost, in_graph, dying=[1])


def test_errors_are_both_and_can_be_pickled() -> None:
    lost = as_framework_error(slipstream.PeerLost("rank 3 is gone", 3, "host-3"))
    assert isinstance(lost, slipstream.PeerLost)
    assert isinstance(lost, tf.errors.UnavailableError)
    assert (str(lost), lost.rank, lost.host, lost.message) == (
        "rank 3 is gone",
        3,
        "host-3",
        "rank 3 is gone",
    )
    assert as_framework_error(lost) is lost
    again = pickle.loads(pickle.dumps(lost))
    assert type(again) is slipstream.PeerLost
    assert str(again) == "rank 3 is gone"


@pytest.mark.parametrize("kind", [slipstream.Timeout, slipstream.Aborted, slipstream.Refused])
def test_errors_without_a_rank(kind: Any) -> None:
    found = as_framework_error(kind("it took too long"))
    assert isinstance(found, kind)
    assert isinstance(found, tf.errors.UnavailableError)
    assert (str(found), found.message) == ("it took too long", "it took too long")
    again = pickle.loads(pickle.dumps(found))
    assert (type(again), str(again)) == (kind, "it took too long")
