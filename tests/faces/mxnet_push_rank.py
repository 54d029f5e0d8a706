"""A rank of test_mxnet_pushes.py: operations that MXNet's engine runs."""

from __future__ import annotations

import os
import sys
import time

import slipstream.mxnet as hvd  # isort: skip

import mxnet as mx
import numpy as np
import pytest

import slipstream
from slipstream.faces.mxnet import lines, operations

mode = sys.argv[1]
hvd.init()
rank, size = hvd.rank(), hvd.size()
TOTAL = size * (size + 1) // 2


def check(found: object, wanted: object) -> None:
    assert np.array_equal(found.asnumpy(), wanted), (found, wanted)  # type: ignore[attr-defined]


def never(*_: object, **__: object) -> None:
    raise AssertionError("the operation went the blocking way")


def busy(rounds: int) -> object:
    """An array of ones that MXNet computes for a while."""
    x, ones = mx.nd.ones((400, 400)), mx.nd.ones((400, 400))
    for _ in range(rounds):
        x = mx.nd.dot(x, ones) / 400
    return x


def values() -> None:
    """All dtypes and sizes, in place and not, alone and grouped; none of them the blocking way."""
    operations.start = never  # type: ignore[attr-defined]
    for dtype in ("float32", "float64", "float16", "int32", "int64", "uint8", "int8"):
        for shape in ((1,), (3, 5), (1023,), (40_001,)):
            mine = mx.nd.ones(shape, dtype=dtype) * (rank + 1)
            check(hvd.allreduce(mine, average=False), np.full(shape, TOTAL, dtype))
            check(mine, np.full(shape, rank + 1, dtype))
            assert hvd.allreduce_(mine, op=hvd.Max) is mine
            check(mine, np.full(shape, size, dtype))
            check(hvd.broadcast(mine * 0 + rank, size - 1), np.full(shape, size - 1, dtype))
            check(hvd.broadcast_(mine * 0 + rank, 0), np.zeros(shape, dtype))
    shapes = (3, 50_000, 1, 7)
    given = [mx.nd.ones(n, dtype=kind) * (rank + 1) for n in shapes for kind in ("float32", "int32")]
    for one in hvd.grouped_allreduce(given, average=False):
        check(one, np.full(one.shape, TOTAL))
    for one, same in zip(hvd.grouped_allreduce_(given, op=hvd.Sum, prescale_factor=2), given, strict=True):
        assert one is same
        check(one, np.full(one.shape, 2 * TOTAL))
    # Views of one array, with what MXNet computes before and after.
    x = busy(5)
    hvd.allreduce_(x[100:200], average=False)
    x += 1
    check(x[:100], np.full((100, 400), 2))
    check(x[100:200], np.full((100, 400), size + 1))


def one_layout() -> None:
    """What oneDNN keeps in a layout of its own comes in the common one."""
    data = mx.nd.array(np.random.RandomState(0).normal(size=(2, 16, 9, 9)))
    weight = mx.nd.array(np.random.RandomState(1).normal(size=(32, 16, 3, 3)))
    for in_place in (False, True):
        found = mx.nd.Convolution(data, weight, kernel=(3, 3), num_filter=32, no_bias=True)
        wanted = mx.nd.Convolution(data, weight, kernel=(3, 3), num_filter=32, no_bias=True).asnumpy()
        total = (hvd.allreduce_ if in_place else hvd.allreduce)(found, op=hvd.Sum)
        assert np.allclose(total.asnumpy(), wanted * size, rtol=1e-4, atol=1e-4)


def same_memory() -> None:
    """Arrays of a group that share memory are reduced one by one."""
    x = mx.nd.ones(4) * (rank + 1)
    found = hvd.grouped_allreduce([x, x], average=False)
    for one in found:
        check(one, np.full(4, TOTAL))


def at_once() -> None:
    """A call takes an array that is still computed, and returns while another rank has yet to call it."""
    hvd.allreduce(mx.nd.ones(1)).wait_to_read()
    check(hvd.allreduce(busy(300), average=False), np.full((400, 400), float(size)))
    if rank == 0:
        y = hvd.allreduce(mx.nd.ones(2), average=False, name="early")
        slipstream.barrier()
    else:
        slipstream.barrier()
        y = hvd.allreduce(mx.nd.ones(2), average=False, name="early")
    check(y, np.full(2, size))


def order() -> None:
    """Arrays become ready in another order on each rank."""
    for turn in range(10):
        arrays = [busy(20 if i % size == rank else 0) * (i + 1) for i in range(2 * size)]
        for i, one in enumerate(arrays):
            hvd.allreduce_(one, average=False, name=None if turn % 2 else f"x{i}")
        for i, one in enumerate(arrays):
            check(one, np.full((400, 400), float(size * (i + 1))))
    kv = mx.kv.create("slipstream")
    for _ in range(5):  # a key's line is its own: the ranks may even push keys in other orders
        keys = range(4) if rank % 2 else range(3, -1, -1)
        arrays = [mx.nd.ones(100) * (key + 1) for key in range(4)]
        for key in keys:
            kv.pushpull(key, arrays[key])
        for key, one in enumerate(arrays):
            check(one, np.full(100, float(size * (key + 1))))


def mismatches() -> None:
    """Every rank gets the text, and the job goes on."""
    for _ in range(2):
        y = hvd.allreduce(mx.nd.ones((5, 2 + rank)), name="wrong")
        with pytest.raises(slipstream.Mismatch, match=r"rank 1 with allreduce 'wrong' of float32, \(5, 3\)"):
            (y + 1).asnumpy()
        check(hvd.allreduce(mx.nd.ones(2), average=False), np.full(2, size))
    for call, text in (
        (lambda: hvd.allreduce(mx.nd.ones(2), prescale_factor=1.0 + rank), "factors"),
        (lambda: hvd.allreduce_(mx.nd.ones(2 + rank % 2)), "rank 1 with"),
        (lambda: hvd.allreduce(mx.nd.ones(2), name=f"name {rank}"), "'name 1'"),
        (lambda: hvd.broadcast(mx.nd.ones(2), rank), "from rank 1"),
        (
            lambda: hvd.broadcast(mx.nd.ones(2), 0) if rank else hvd.allreduce(mx.nd.ones(2)),
            "rank 0 with allreduce of float32",
        ),
    ):
        for shape in ((2,), (3,)):  # what differs has been called before
            hvd.allreduce(mx.nd.ones(shape)).wait_to_read()
        y = call()
        with pytest.raises(slipstream.Mismatch, match=text):
            y.wait_to_read()
    check(hvd.allreduce(mx.nd.ones(2), average=False), np.full(2, size))


def training_mismatch() -> None:
    net = mx.gluon.nn.Dense(2, in_units=3 + rank)
    net.initialize()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 3 + rank))).sum()
    loss.backward()
    trainer.step(1)
    with pytest.raises(slipstream.Mismatch, match="gradient"):
        mx.nd.waitall()
    with pytest.raises(slipstream.Mismatch):
        trainer.step(1)


def broken_input() -> None:
    """One rank's own computation fails: the others learn which, and why."""
    x = mx.nd.ones(3)
    hvd.allreduce(x).wait_to_read()
    if rank == 1:
        x = mx.nd.random.normal(0, -1, shape=3)  # an error of MXNet's, once it computes it
    try:
        hvd.allreduce(x, name="broken").wait_to_read()
    except (slipstream.SlipstreamError, mx.base.MXNetError) as error:
        print("raised", type(error).__name__, str(error).replace("\n", " "))
    with pytest.raises(slipstream.Aborted, match=r"rank 1 could not run allreduce 'broken'"):
        hvd.barrier()


def killed() -> None:
    """The last rank dies while the others wait for it, with operations in flight."""
    hvd.allreduce(mx.nd.ones(2)).wait_to_read()
    if rank == size - 1:
        os._exit(0)
    waiting = [hvd.allreduce_(mx.nd.ones(100)) for _ in range(20)]
    text = ""
    for one in waiting:
        try:
            one.wait_to_read()
        except slipstream.PeerLost as error:
            text = text or f"raised {error.rank} {error}"
    print(text)
    with pytest.raises(slipstream.PeerLost, match=f"rank {size - 1}"):
        hvd.allreduce_(mx.nd.ones(2))
    mx.nd.waitall()  # nothing hangs in MXNet


def forked() -> None:
    """A fork with operations in flight: the parent goes on, and the child is no rank."""
    for _ in range(3):
        arrays = [hvd.allreduce_(busy(10), average=False) for _ in range(10)]
        child = os.fork()
        if child == 0:
            try:
                hvd.allreduce(mx.nd.ones(2))
            except (slipstream.SlipstreamError, ValueError):
                lines.drain("the test wanted it")
                os._exit(7)
            os._exit(1)
        for one in arrays:
            check(one, np.full((400, 400), float(size)))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    check(hvd.allreduce(mx.nd.ones(2), average=False), np.full(2, size))


def left() -> None:
    """Leaving the job with operations in flight, and a new job after it."""
    for _ in range(2):
        arrays = [hvd.allreduce_(busy(5), average=False) for _ in range(10)]
        hvd.shutdown()
        for one in arrays:
            check(one, np.full((400, 400), float(size)))
        hvd.init()
    check(hvd.allreduce(mx.nd.ones(2), average=False), np.full(2, size))


def exits() -> None:
    """The process ends with operations in flight."""
    for _ in range(10):
        hvd.allreduce_(busy(5), average=False)


def dies_of_an_exception() -> None:
    """One rank ends by an exception with an operation in flight that the others do not call."""
    hvd.allreduce(mx.nd.ones(2)).wait_to_read()
    if rank == 0:
        hvd.allreduce_(mx.nd.ones(2))
        raise KeyError("a mistake of the program")
    try:
        while True:  # an operation of its own would be a mismatch
            slipstream.world().session.check()
            time.sleep(0.01)  # a poll for what another process does
    except slipstream.SlipstreamError as error:
        print("raised", error)


globals()[mode]()
print("done")
