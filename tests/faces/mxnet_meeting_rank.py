"""A rank of test_mxnet_meeting.py: some ranks' operations are run by MXNet's engine, those of others wait."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

mode = sys.argv[1]
if mode == "engines" and os.environ["SLIPSTREAM_RANK"] == "0":
    os.environ["MXNET_ENGINE_TYPE"] = "NaiveEngine"  # before MXNet is loaded

import slipstream.mxnet as hvd  # isort: skip # noqa: E402

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

import slipstream  # noqa: E402
from slipstream.faces.mxnet import operations, pushes, waits  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1]))

from comm.interruption import break_off, main_is_in  # noqa: E402

hvd.init()
rank, size = hvd.rank(), hvd.size()
TOTAL = size * (size + 1) // 2
counts = {"pushed": 0, "waited": 0}


def counted(kind: str, function: Callable[..., object]) -> Callable[..., object]:
    def call(*args: object) -> object:
        found = function(*args)
        counts[kind] += bool(found)
        return found

    return call


operations.push = counted("pushed", pushes.push)  # type: ignore[attr-defined]
operations.start = counted("waited", waits.start)  # type: ignore[attr-defined]


def check(found: object, wanted: object) -> None:
    assert np.array_equal(found.asnumpy(), wanted), (found, wanted)  # type: ignore[attr-defined]


def still_works() -> None:
    check(hvd.allreduce(mx.nd.ones(2) * (rank + 1), average=False), np.full(2, TOTAL))


def pair(shares: bool, shape: object = (2,), dtype: str = "float32") -> list[object]:
    """Two equal arrays of this rank's number, which may share memory: then the operation cannot be pushed."""
    first = mx.nd.ones(shape, dtype=dtype) * (rank + 1)
    return [first, first if shares else first.copy()]


def shared_memory() -> None:
    """One rank's arrays share memory, those of the others do not."""
    for turn, name in enumerate([None, "some", None]):
        waits_here = rank == turn % size
        for shape in ((1,), (3, 5), (40_001,), (100_003,)):
            for dtype in ("float32", "int64"):
                given = pair(waits_here, shape, dtype)
                before = dict(counts)
                for one in hvd.grouped_allreduce(given, average=False, name=name):
                    check(one, np.full(shape, TOTAL))
                check(given[0], np.full(shape, rank + 1))
                for one in hvd.grouped_allreduce_(given, op=hvd.Max, name=name):
                    check(one, np.full(shape, size))
                check(given[0], np.full(shape, size))
                way = "waited" if waits_here else "pushed"
                assert counts[way] == before[way] + 2, (counts, before)
    # Parts of one array.
    whole = mx.nd.arange(10) * (rank + 1)
    parts = [whole[:4], whole[4:]] if rank == 0 else [whole[:4].copy(), whole[4:].copy()]
    low, high = hvd.grouped_allreduce_(parts, op=hvd.Sum)
    check(low, np.arange(4) * TOTAL)
    check(high, np.arange(4, 10) * TOTAL)
    if rank == 0:
        check(whole, np.arange(10) * TOTAL)


def kinds_of_arrays() -> None:
    """Arrays that no rank can push: without elements, and without dimensions."""
    for shape in ((0,), (3, 0, 2)):
        with mx.util.np_shape(True):
            empty = mx.nd.zeros(shape)
            assert hvd.allreduce(empty, average=False).shape == shape
            assert hvd.broadcast_(empty, 0) is empty
            first, second = hvd.grouped_allreduce([empty, mx.nd.ones(3)], average=False)
            assert first.shape == shape
            check(second, np.full(3, size))
    with mx.util.np_shape(True):
        number = mx.nd.ones(()) * (rank + 1)
        check(hvd.allreduce(number, average=False), np.array(TOTAL))
        check(hvd.broadcast_(number, size - 1), np.array(size))
    with pytest.raises(TypeError, match="bfloat16"):
        hvd.allreduce(mx.nd.amp_cast(mx.nd.ones(2), dtype="bfloat16"))
    assert counts["pushed"] == 0
    still_works()
    assert counts["pushed"] == 1


def differing(first: Callable[[], object], others: Callable[[], object], *texts: str) -> None:
    """Rank 0 calls the first, the others the second: all get an error with these texts, and the job goes on."""

    def call() -> None:
        found = (first if rank == 0 else others)()
        for one in found if isinstance(found, list) else [found]:
            one.wait_to_read()

    with pytest.raises(slipstream.Mismatch) as caught:
        call()
    for text in ("rank 0 with ", "rank 1 with ", *texts):
        assert text in str(caught.value), caught.value
    still_works()


def forms() -> None:
    """Arrays of other shapes and dtypes, of which one rank waits for some and the other pushes them."""
    for waits_first in (True, False):
        differing(
            lambda w=waits_first: hvd.grouped_allreduce(pair(w, (2,))),
            lambda w=waits_first: hvd.grouped_allreduce(pair(not w, (3,))),
            "rank 0 with allreduce of float32, (2,); float32, (2,), average",
            "rank 1 with allreduce of float32, (3,); float32, (3,), average",
        )
    differing(
        lambda: hvd.grouped_allreduce(pair(True, dtype="int32"), name="x"),
        lambda: hvd.grouped_allreduce(pair(False), name="x"),
        "rank 0 with allreduce 'x' of int32, (2,); int32, (2,)",
        "rank 1 with allreduce 'x' of float32, (2,); float32, (2,)",
    )
    with mx.util.np_shape(True):
        empty = mx.nd.zeros((0, 2))
    differing(
        lambda: hvd.broadcast(empty, 0),
        lambda: hvd.broadcast(mx.nd.ones((1, 2)), 0),
        "(0, 2)",
        "(1, 2)",
    )
    differing(
        lambda: hvd.grouped_allreduce(pair(True), name="a"),
        lambda: hvd.grouped_allreduce(pair(False), name="b"),
        "allreduce 'a' of",
        "allreduce 'b' of",
    )


def kinds_of_operations() -> None:
    """Ranks that call different operations: whatever these are, all get an error that names both."""
    x = mx.nd.ones((size, 2))
    calls: dict[str, Callable[[], object]] = {
        "allreduce of float32, (": lambda: hvd.allreduce(x),
        "allreduce of float32, (2,); float32, (2,)": lambda: hvd.grouped_allreduce(pair(True)),
        "broadcast of float32, (": lambda: hvd.broadcast(x, 0),
        "allgather of float32, (*, 2)": lambda: hvd.allgather(x),
        "alltoall of float32, (*, 2)": lambda: hvd.alltoall(x),
        "reducescatter 'some' of float32, (": lambda: hvd.reducescatter(x, name="some"),
        "barrier": hvd.barrier,
        "broadcast_object": lambda: hvd.broadcast_object(1, 0),
        "allgather_object": lambda: hvd.allgather_object(2),
    }
    for one, first in calls.items():
        for other, second in calls.items():
            if one != other:
                differing(first, second, f"rank 0 with {one}", f"rank 1 with {other}")


def order() -> None:
    """Pushes whose arrays are not there yet, calls that wait and other operations, one after another."""
    random = np.random.RandomState(7)
    ones = mx.nd.ones((300, 300))
    pushed = []
    for step in range(60):
        kind = random.randint(4)
        if kind == 0:  # this rank's array takes its time
            x = mx.nd.ones((300, 300)) * (step + rank)
            for _ in range(20 if step % size == rank else 0):
                x = mx.nd.dot(x, ones) / 300
            pushed.append((hvd.allreduce_(x, average=False), size * step + TOTAL - size))
        elif kind == 1:
            for one in hvd.grouped_allreduce(pair(step % size == rank), average=False):
                check(one, np.full(2, TOTAL))
        elif kind == 2:
            check(hvd.allgather(mx.nd.array([step + rank])), np.arange(size) + step)
        else:
            check(hvd.broadcast(mx.nd.array([step + rank]), step % size), [step + step % size])
    assert len(pushed) > 5
    for one, wanted in pushed:
        assert np.allclose(one.asnumpy(), wanted, rtol=1e-5), wanted


def engines() -> None:
    """Rank 0 has MXNet's engine without threads, the others have the one with threads."""
    assert pushes.can_push() == (rank != 0)
    for _ in range(3):
        still_works()
        check(hvd.broadcast(mx.nd.array([rank, 1]), 1), [1, 1])
        check(hvd.allgather(mx.nd.array([rank])), np.arange(size))
    net = mx.gluon.nn.Dense(2, in_units=3, use_bias=False)
    net.initialize(mx.init.One())
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    with mx.autograd.record():
        loss = (net(mx.nd.ones((1, 3))) * (rank + 1)).sum()
    loss.backward()
    trainer.step(1)
    check(net.weight.data(), np.full((2, 3), 1 - TOTAL / size, np.float32))


def broken_off(call: Callable[[], object]) -> None:
    """Calls it, and a signal's handler raises in it when it is in the line and waits for the other ranks."""
    break_off(call, slipstream.world().session, ready=lambda: main_is_in(waits._wait_for.__name__))


def interrupted() -> None:
    """A call that waits in the line is broken off by a signal: the operation goes on, and the next one is the next."""
    for turn in range(3):
        if rank == 0:
            broken_off(lambda: hvd.grouped_allreduce(pair(True, (1000,)), average=False))
        slipstream.barrier()
        if rank > 0:
            for one in hvd.grouped_allreduce(pair(turn == 1, (1000,)), average=False):
                check(one, np.full(1000, TOTAL))
        still_works()


def interrupted_turn() -> None:
    """A call that has yet to begin is broken off: the job ends on all ranks."""
    still_works()
    if rank == 0:
        broken_off(lambda: hvd.allgather(mx.nd.ones(2)))
    try:
        slipstream.barrier()
    except slipstream.Aborted as error:
        print("raised", error)


def reducers() -> None:
    """Beside reducers calls wait, until a trainer's gradients take the reducers over."""

    def sent() -> int:
        return sum(one["sent"] for one in slipstream.world().job.reducers.states())

    width = 1000
    net = mx.gluon.nn.Dense(width, in_units=width, use_bias=False)
    net.initialize(mx.init.One())
    hvd.broadcast_parameters(net.collect_params())
    still_works()
    check(hvd.allreduce(mx.nd.ones((width, width)), average=False), np.full((width, width), size))
    assert counts == {"pushed": 0, "waited": 0}
    assert sent() > 0
    differing(
        lambda: hvd.allgather(mx.nd.ones(2)), lambda: hvd.allreduce(mx.nd.ones(2)), "allgather", "allreduce"
    )
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    for step in range(3):
        before = sent()
        with mx.autograd.record():
            loss = (net(mx.nd.ones((1, width))) * (rank + 1)).sum()
        loss.backward()
        trainer.step(1)
        wanted = np.full((width, width), 1 - (step + 1) * TOTAL / size, np.float32)
        assert np.allclose(net.weight.data().asnumpy(), wanted, rtol=1e-5, atol=1e-4)
        assert sent() > before
    assert counts == {"pushed": 3, "waited": 0}
    still_works()
    assert counts["pushed"] == 4
    check(hvd.allgather(mx.nd.array([rank])), np.arange(size))


def never_called() -> None:
    """Each rank has an operation under way that the other one never calls."""
    still_works()
    operations.sum_of(mx.nd.ones(2), "mine", f"line {rank}")
    if sys.argv[2] == "left the job":
        hvd.shutdown()
    elif sys.argv[2] == "forked":
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


globals()[mode]()
print("done")
