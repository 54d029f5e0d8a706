"""A rank of test_mxnet.py: what operations give, training, and what a lost rank leads to."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import slipstream.mxnet as hvd  # isort: skip

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import slipstream

mode = sys.argv[1]
hvd.init()
rank, size = hvd.rank(), hvd.size()


def check(found: object, wanted: object) -> None:
    assert np.array_equal(found.asnumpy(), np.array(wanted)), (found, wanted)  # type: ignore[attr-defined]


def operations() -> None:
    total = size * (size + 1) // 2
    for dtype in ("float32", "float64", "float16", "int32", "int64", "uint8", "int8"):
        x = mx.nd.ones((2, 3), dtype=dtype) * (rank + 1)
        y = hvd.allreduce(x, average=False, name=f"sum {dtype}")
        assert y.dtype == x.dtype
        check(y, np.full((2, 3), total))
        check(x, np.full((2, 3), rank + 1))
        assert hvd.allreduce_(x, op=hvd.Max) is x
        check(x, np.full((2, 3), size))
    check(hvd.allreduce(mx.nd.ones(2) * (rank + 1)), np.full(2, total / size))
    check(
        hvd.allreduce(mx.nd.ones(2), average=False, prescale_factor=3.0, postscale_factor=2.0), [6 * size] * 2
    )
    first, second = hvd.grouped_allreduce([mx.nd.ones(2) * rank, mx.nd.ones(1)], average=False, name="two")
    check(first, [total - size] * 2)
    check(second, [size])
    check(
        hvd.allgather(mx.nd.ones((rank + 1, 2)) * rank), [[r] * 2 for r in range(size) for _ in range(r + 1)]
    )
    check(hvd.grouped_allgather([mx.nd.array([rank], dtype="int32")])[0], range(size))
    x = mx.nd.array([rank, rank])
    check(hvd.broadcast(x, 1), [1, 1])
    check(x, [rank, rank])
    check(hvd.broadcast_(x, 1), [1, 1])
    check(
        hvd.alltoall(mx.nd.array([10 * rank + r for r in range(size)])), [10 * r + rank for r in range(size)]
    )
    rows, counts = hvd.alltoall(mx.nd.ones((size + 1, 2)) * rank, splits=[2] + [1] * (size - 1))
    check(counts, [2 if rank == 0 else 1] * size)
    check(rows, [[r] * 2 for r in range(size) for _ in range(2 if rank == 0 else 1)])
    whole = np.arange(size + 1) * size
    check(
        hvd.reducescatter(mx.nd.arange(size + 1), op=hvd.Sum), whole[:2] if rank == 0 else whole[[rank + 1]]
    )
    check(hvd.grouped_reducescatter([mx.nd.ones(size)], op=hvd.Sum)[0], [size])
    # What MXNet has not computed yet is waited for, and what it computes of a result comes after.
    x = mx.nd.ones((300, 300))
    for _ in range(20):
        x = mx.nd.dot(x, mx.nd.ones((300, 300))) / 300
    check(hvd.allreduce_(x, average=False) * 2, np.full((300, 300), 2.0 * size))
    assert hvd.broadcast_object({"rank": rank}, root_rank=1) == {"rank": 1}


def waited(result: object) -> object:
    """What an operation returns, once it is done; raises its error."""
    for one in result if isinstance(result, list | tuple) else [result]:
        if isinstance(one, mx.nd.NDArray):
            one.wait_to_read()
    return result


def mistakes() -> None:
    for wrong in (np.ones(2), mx.nd.ones((2, 2)).tostype("csr")):
        try:
            hvd.allreduce(wrong)
        except TypeError as error:
            print(f"raised {error}")
    try:
        waited(hvd.allreduce(mx.nd.ones(2 + rank)))
    except slipstream.Mismatch as error:
        print(f"raised {error}")


def raises(kinds: object, call: Callable[[], object], text: str) -> None:
    with pytest.raises(kinds, match=text):  # type: ignore[call-overload]
        waited(call())


def mistakes_end_nothing() -> None:
    """The job goes on after what the ranks differ in, and after arguments that do not fit."""
    dtype = "int32" if rank == 0 else "float32"
    differing: list[Callable[[], object]] = [
        lambda: hvd.allreduce(mx.nd.ones((17 + rank, 3))),
        lambda: hvd.allreduce(mx.nd.ones(3, dtype=dtype)),
        lambda: hvd.grouped_allreduce([mx.nd.ones(2), mx.nd.ones(3 + rank)]),
        lambda: hvd.allgather(mx.nd.ones((2, 3 + rank))),
        lambda: hvd.allgather(mx.nd.ones(3, dtype=dtype)),
        lambda: hvd.broadcast(mx.nd.ones(3), rank),
        lambda: hvd.broadcast_(mx.nd.ones(3 + rank), 0),
        lambda: hvd.alltoall(mx.nd.ones((size, 3 + rank))),
        lambda: hvd.reducescatter(mx.nd.ones((size + rank, 3))),
    ]
    for call in differing:
        raises(slipstream.Mismatch, call, "rank")
        check(hvd.allreduce(mx.nd.ones(2), op=hvd.Sum), [size, size])
    for kind in (ValueError, mx.base.MXNetError):
        raises(kind, lambda: hvd.alltoall(mx.nd.ones(size + 1)), "give splits")
        raises(
            kind,
            lambda: hvd.alltoall(mx.nd.ones(size - 1), mx.nd.ones(size, dtype="int32")),
            "splits must be",
        )
        raises(kind, lambda: hvd.alltoall(mx.nd.ones(size), mx.nd.ones(size)), "use dtype='int32'")
        raises(kind, lambda: hvd.broadcast(mx.nd.ones(1), size), "root_rank")
    check(hvd.allreduce(mx.nd.ones(2), op=hvd.Sum), [size, size])


def process_sets() -> None:
    """Training by some of the ranks; the others train alone."""
    some = hvd.global_process_set if size == 2 else hvd.add_process_set([0, 1])
    # As Horovod has it, the process set comes before the factors.
    if rank < 2:
        check(hvd.reducescatter(mx.nd.ones(2) * (rank + 1), hvd.Sum, None, 0, some, 2.0), [6])
        check(hvd.grouped_reducescatter([mx.nd.ones(2) * (rank + 1)], hvd.Sum, None, 0, some, 2.0)[0], [6])

    def train(kind: str) -> np.ndarray:
        net = gluon.nn.Dense(2, in_units=3, use_bias=False)
        net.initialize(mx.init.One())
        params = net.collect_params()
        if kind == "trainer":
            trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0}, process_set=some)
        with autograd.record():
            loss = (net(mx.nd.ones((1, 3))) * (rank + 1)).sum()
        loss.backward()
        if kind == "trainer":
            trainer.step(1)
        else:
            optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0), process_set=some)
            mx.optimizer.get_updater(optimizer)(0, net.weight.grad(), net.weight.data())
        return net.weight.data()

    unknown = hvd.ProcessSet([0])
    sgd = mx.optimizer.SGD(learning_rate=1.0)
    raises(ValueError, lambda: hvd.DistributedOptimizer(sgd, process_set=unknown), "not known")
    raises(TypeError, lambda: hvd.reducescatter(mx.nd.ones(2), hvd.Sum, None, 0, 2.0), "by name")
    mean = 1.5 if rank < 2 else rank + 1.0
    for kind in ("trainer", "optimizer"):
        check(train(kind), np.full((2, 3), 1.0 - mean))


def deferred() -> None:
    """Parameters whose shapes only the first batch tells."""
    mx.random.seed(rank)
    net = gluon.nn.Dense(3)
    net.initialize(mx.init.Normal())
    hvd.broadcast_parameters(net.collect_params(), root_rank=size - 1)
    net(mx.nd.ones((1, 5)))
    weights = hvd.allgather(net.weight.data().reshape((1, -1)))
    assert (weights.asnumpy() == weights.asnumpy()[0]).all()
    assert weights.asnumpy().any()


def ways_to_train() -> None:
    """Every way gives what one process with all the data has."""
    x = mx.nd.array(np.random.RandomState(0).normal(size=(4 * size, 6)))
    hvd.replace_stores()

    def train(kind: str, alone: bool) -> np.ndarray:
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Dense(5, in_units=6, activation="tanh"), gluon.nn.Dense(2, in_units=5))
        net.initialize(mx.init.One())
        options = {"learning_rate": 0.1, "momentum": 0.9}
        params = net.collect_params()
        mine = x if alone else x[rank::size]
        batch = len(x)
        if alone:
            trainer = gluon.Trainer(params, "sgd", options, kvstore=None)
        elif kind == "trainer":
            trainer, batch = hvd.DistributedTrainer(params, "sgd", options), len(mine)
        elif kind == "predivided":
            trainer = hvd.DistributedTrainer(params, "sgd", options, gradient_predivide_factor=2.0)
            batch = len(mine)
        elif kind == "fp16":
            trainer = hvd.DistributedTrainer(params, "sgd", options, compression=hvd.Compression.fp16)
            batch = len(mine)
        elif kind == "optimizer":
            optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(**options))
            optimizer._optimizer.rescale_grad /= len(mine)
            updater = mx.optimizer.get_updater(optimizer)
        else:
            trainer = gluon.Trainer(params, "sgd", options, kvstore=kind)
        for _ in range(3):
            with autograd.record():
                loss = (net(mine) ** 2).sum()
            loss.backward()
            if kind == "optimizer" and not alone:
                for index, param in enumerate(params.values()):
                    updater(index, param.grad(), param.data())
            else:
                trainer.step(batch)
        return np.concatenate([param.data().asnumpy().ravel() for param in params.values()])

    wanted = train("", alone=True)
    for kind in ("trainer", "predivided", "fp16", "optimizer", "dist_sync", "dist_slipstream"):
        found = train(kind, alone=False)
        assert np.allclose(found, wanted, rtol=1e-2 if kind == "fp16" else 1e-5), (kind, found, wanted)
        everywhere = hvd.allgather(mx.nd.array(found[None])).asnumpy()
        assert (everywhere == everywhere[0]).all(), kind


def store() -> None:
    kv = mx.kv.create("slipstream")
    assert (kv.rank, kv.num_workers, kv.is_capable("optimizer")) == (rank, size, False)
    value, out = mx.nd.ones(2) * rank, mx.nd.zeros(2)
    kv.broadcast("a", value, out)
    check(out, [0, 0])
    kv.pushpull("a", value, out)
    check(out, [sum(range(size))] * 2)
    check(value, [rank] * 2)
    kv.pushpull(["a", "b"], [[value, value], [mx.nd.ones(1)]])
    check(value, [2 * sum(range(size))] * 2)
    kv.push("c", mx.nd.ones(2))
    kv.pull("c", out)
    check(out, [size] * 2)
    kv.barrier()


def lost() -> None:
    waited(hvd.allreduce(mx.nd.ones(2)))
    if rank == size - 1:
        os._exit(0)
    try:
        waited(hvd.allreduce(mx.nd.ones(2)))
    except hvd.HorovodInternalError as error:
        print(f"raised {type(error).__name__}: {error}")


{
    "operations": operations,
    "mistakes": mistakes,
    "mistakes_end_nothing": mistakes_end_nothing,
    "process_sets": process_sets,
    "deferred": deferred,
    "training": ways_to_train,
    "store": store,
    "lost": lost,
}[mode]()
print("done")
