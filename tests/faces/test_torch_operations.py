"""The operations of slipstream.torch against what PyTorch computes from all ranks' tensors."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream  # noqa: E402
import slipstream.torch as hvd  # noqa: E402

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
OTHERS = [torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64]


def tensors_of_all(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> list[Any]:
    """What each rank brings; every rank can compute it."""
    made = []
    for rank in range(hvd.size()):
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        if dtype.is_floating_point or dtype.is_complex:
            # multiples of 1/8 are exact in every float dtype here
            whole = torch.randint(-24, 25, shape, generator=generator) / 8
            made.append((whole.to(torch.float64)).to(dtype))
        else:
            low = -3 if dtype.is_signed else 0
            made.append(torch.randint(low, 4, shape, generator=generator).to(dtype))
    return made


def mine(everyone: list[Any]) -> Any:
    return everyone[hvd.rank()]


def wide(dtype: Any) -> Any:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.int64


def expected_reduction(everyone: list[Any], op: int) -> Any:
    dtype = everyone[0].dtype
    stacked = torch.stack([tensor.to(wide(dtype)) for tensor in everyone])
    if op == hvd.Average:
        total = stacked.sum(0)
        if wide(dtype) is torch.int64:
            result = torch.div(total, len(everyone), rounding_mode="trunc")
        else:
            result = total / len(everyone)
    else:
        reduce = {hvd.Sum: "sum", hvd.Product: "prod", hvd.Min: "amin", hvd.Max: "amax"}[op]
        result = getattr(stacked, reduce)(0)
    return result != 0 if dtype is torch.bool else result.to(dtype)


def assert_same(got: Any, want: Any, where: object) -> None:
    assert got.dtype == want.dtype, where
    assert got.shape == want.shape, where
    if got.dtype.is_floating_point or got.dtype.is_complex:
        torch.testing.assert_close(got, want, msg=lambda text: f"{where}: {text}")
    else:
        assert torch.equal(got, want), f"{where}: {got} is not {want}"


def ops_of(dtype: Any) -> list[int]:
    if dtype.is_complex:
        return [hvd.Average, hvd.Sum, hvd.Product]
    if dtype is torch.bool:
        return [hvd.Sum, hvd.Product, hvd.Min, hvd.Max]
    return [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]


def check_allreduce() -> None:
    for dtype in FLOATS + INTEGERS + OTHERS:
        for op in ops_of(dtype):
            for shape in ((), (0,), (17,), (5, 3, 2)):
                everyone = tensors_of_all(shape, dtype)
                want = expected_reduction(everyone, op)
                where = (dtype, op, shape)
                before = mine(everyone).clone()
                assert_same(hvd.allreduce(mine(everyone), op=op), want, where)
                assert torch.equal(mine(everyone), before)
                target = before.clone()
                assert hvd.allreduce_(target, op=op) is target
                assert_same(target, want, where)


def check_arguments() -> None:
    values = tensors_of_all((6,), torch.float32)
    total = sum(values)
    x = mine(values)
    assert_same(hvd.allreduce(x), total / hvd.size(), "default")
    assert_same(hvd.allreduce(x, False), total, "average=False")
    assert_same(hvd.allreduce(x, average=True), total / hvd.size(), "average=True")
    assert_same(hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), total * 2, "scales")
    for bad in ({"average": True, "op": hvd.Sum}, {"op": 9}, {"op": True}):
        with pytest.raises(ValueError):
            hvd.allreduce(x, **bad)
    with pytest.raises(NotImplementedError, match="Adasum"):
        hvd.reducescatter(torch.ones(4), op=hvd.Adasum)
    with pytest.raises(ValueError, match="not supported"):
        hvd.allreduce(torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8))
    # whatever went wrong here, it was local: the job goes on
    assert_same(hvd.allreduce(x, op=hvd.Sum), total, "after errors")


def check_strides() -> None:
    base = [t.reshape(4, 6) for t in tensors_of_all((24,), torch.float32)]
    views = {
        "transposed": lambda t: t.t(),
        "columns": lambda t: t[:, ::2],
        "offset": lambda t: t[1:3, 1:5],
        "expanded": lambda t: t[:1].expand(3, 6),
        "channels last": lambda t: t.reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    }
    for name, view in views.items():
        want = sum(view(t) for t in base)
        assert_same(hvd.allreduce(view(mine(base)), op=hvd.Sum), want, name)
        assert_same(hvd.broadcast(view(mine(base)), 0), view(base[0]), name)
        assert_same(hvd.allgather(view(mine(base))), torch.cat([view(t) for t in base]), name)
    whole = mine(base).clone()
    hvd.allreduce_(whole[:, ::2], op=hvd.Sum)
    assert_same(whole[:, ::2], sum(t[:, ::2] for t in base), "in place")
    assert_same(whole[:, 1::2], mine(base)[:, 1::2], "neighbours untouched")
    whole = mine(base).clone()
    hvd.broadcast_(whole.t(), 1)
    assert_same(whole, base[1], "broadcast in place")
    z = torch.complex(mine(base), mine(base))
    assert_same(hvd.allreduce(z.conj(), op=hvd.Sum), sum(torch.complex(t, -t) for t in base), "conjugate")


def check_handles() -> None:
    values = tensors_of_all((1000,), torch.float32)
    handles = [hvd.allreduce_async(mine(values) * k, name=f"h{k}", op=hvd.Sum) for k in range(5)]
    assert all(isinstance(handle, int) for handle in handles)
    for k, handle in reversed(list(enumerate(handles))):
        assert_same(hvd.synchronize(handle), sum(values) * k, k)
    with pytest.raises(ValueError, match="cleared"):
        hvd.poll(handles[0])
    assert hvd.synchronize(handles[0]) is None
    first = hvd.allreduce_async(mine(values), name="same")
    with pytest.raises(ValueError, match="same name"):
        hvd.allreduce_async(mine(values), name="same")
    hvd.synchronize(first)
    second = hvd.allreduce_async(mine(values), name="same")
    gathered = hvd.allgather_async(mine(values), name="same")  # another kind of operation: no clash
    hvd.synchronize(second)
    hvd.synchronize(gathered)
    handle = hvd.allreduce_async_(mine(values), op=hvd.Max)
    while not hvd.poll(handle):
        pass
    hvd.synchronize(handle)


def check_grouped() -> None:
    dtypes = [torch.float32, torch.int32, torch.float32, torch.float64, torch.float32]
    shapes = [(3,), (2, 2), (), (100_000,), (0, 4)]
    groups = [
        tensors_of_all(shape, dtype, i) for i, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True))
    ]
    inputs = [mine(group) for group in groups]
    want = [expected_reduction(group, hvd.Sum) for group in groups]
    for got in (
        hvd.grouped_allreduce(inputs, op=hvd.Sum),
        hvd.synchronize(hvd.grouped_allreduce_async(inputs, name="group", op=hvd.Sum)),
    ):
        for index, result in enumerate(got):
            assert_same(result, want[index], index)
    copies = [tensor.clone() for tensor in inputs]
    got = hvd.grouped_allreduce_(copies, op=hvd.Sum)
    for index, result in enumerate(got):
        assert result is copies[index]
        assert_same(result, want[index], index)
    got = hvd.grouped_allgather([tensor for tensor in inputs if tensor.dim()])
    for result, group in zip(got, [g for g in groups if g[0].dim()], strict=True):
        assert_same(result, torch.cat(group), "grouped_allgather")
    got = hvd.grouped_reducescatter([inputs[0], inputs[1]], op=hvd.Sum)
    for result, total in zip(got, want[:2], strict=True):
        assert_same(result, share(total), "grouped_reducescatter")


def share(total: Any) -> Any:
    least, more = divmod(total.shape[0], hvd.size())
    rows = [least + (rank < more) for rank in range(hvd.size())]
    return total.split(rows)[hvd.rank()]


def check_reducescatter() -> None:
    for dtype in [torch.float32, torch.bfloat16, torch.int64]:
        for shape in ((7,), (2, 3), (1,), (0, 5), (12, 2)):
            everyone = tensors_of_all(shape, dtype)
            for op in (hvd.Average, hvd.Sum, hvd.Max):
                want = share(expected_reduction(everyone, op))
                assert_same(hvd.reducescatter(mine(everyone), op=op), want, (dtype, shape, op))
    values = tensors_of_all((6,), torch.float32)
    assert_same(hvd.reducescatter(mine(values)), share(sum(values) / hvd.size()), "default op")
    handle = hvd.reducescatter_async(mine(values), name="rs", op=hvd.Sum, prescale_factor=2.0)
    assert_same(hvd.synchronize(handle), share(sum(values) * 2), "async")
    with pytest.raises(ValueError):
        hvd.reducescatter(torch.tensor(1.0))


def check_allgather() -> None:
    for dtype in FLOATS + INTEGERS + OTHERS:
        for width in ((), (3,), (2, 0), (2, 2)):
            parts = [tensors_of_all((2 * rank, *width), dtype, rank)[rank] for rank in range(hvd.size())]
            assert_same(hvd.allgather(mine(parts)), torch.cat(parts), (dtype, width))
    ones = hvd.allgather(torch.tensor(float(hvd.rank())))
    assert_same(ones, torch.arange(float(hvd.size())), "0-dim")
    with pytest.raises(RuntimeError, match="allgather"):
        hvd.allgather(torch.zeros(2, 3 + hvd.rank()))
    with pytest.raises(RuntimeError, match="allgather"):
        hvd.allgather(torch.zeros(2, dtype=[torch.int32, torch.float32][min(hvd.rank(), 1)]))
    assert hvd.allgather(torch.zeros(1)).shape == (hvd.size(),)


def check_broadcast() -> None:
    for dtype in FLOATS + INTEGERS + OTHERS:
        everyone = tensors_of_all((3, 5), dtype)
        for root in range(hvd.size()):
            before = mine(everyone).clone()
            assert_same(hvd.broadcast(mine(everyone), root), everyone[root], (dtype, root))
            assert torch.equal(mine(everyone), before)
            assert hvd.broadcast_(before, root, name="b") is before
            assert_same(before, everyone[root], (dtype, root))
    with pytest.raises(ValueError, match="root_rank"):
        hvd.broadcast(torch.zeros(1), hvd.size())


def check_alltoall() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in [torch.float32, torch.bool, torch.bfloat16, torch.int64]:
        splits = [[(sender + receiver) % 3 for receiver in range(size)] for sender in range(size)]
        sent = [tensors_of_all((sum(splits[r]), 2), dtype, r)[r] for r in range(size)]
        parts = [sent[r].split(splits[r])[rank] for r in range(size)]
        for given in (splits[rank], torch.tensor(splits[rank], dtype=torch.int32)):
            got, received = hvd.alltoall(sent[rank], given)
            assert_same(got, torch.cat(parts), dtype)
            assert received.tolist() == [splits[r][rank] for r in range(size)]
        equal = tensors_of_all((2 * size,), dtype)
        got = hvd.alltoall(mine(equal))
        assert_same(got, torch.cat([t[2 * rank : 2 * rank + 2] for t in equal]), dtype)
    handle = hvd.alltoall_async(mine(equal), name="a")
    assert_same(hvd.synchronize(handle), got, "async")
    for tensor, bad in (
        (torch.zeros(size + 1), None),
        (torch.zeros(4), [4] + [1] * (size - 1)),
        (torch.zeros(4), [4]),
        (torch.zeros(4), torch.full((size,), 4 / size)),
        (torch.tensor(1.0), None),
    ):
        with pytest.raises(ValueError):
            hvd.alltoall(tensor, bad)


def check_process_sets() -> None:
    size, rank = hvd.size(), hvd.rank()
    last = hvd.add_process_set([size - 1, 0])
    assert last.ranks == [0, size - 1]
    assert last.process_set_id is not None
    assert last.size() == 2
    assert last.included() == (rank in (0, size - 1))
    x = torch.full((4,), float(rank))
    if last.included():
        assert_same(hvd.allreduce(x, op=hvd.Sum, process_set=last), torch.full((4,), size - 1.0), "sum")
        root = hvd.broadcast(x, size - 1, process_set=last)
        assert_same(root, torch.full((4,), size - 1.0), "root is a rank of the job")
        assert hvd.broadcast_object(rank, root_rank=size - 1, process_set=last) == size - 1
        with pytest.raises(ValueError, match="root_rank"):
            hvd.broadcast(x, 1, process_set=last)
        hvd.barrier(process_set=last)
    else:
        with pytest.raises(ValueError, match="not in"):
            hvd.allreduce(x, process_set=last)
    with pytest.raises(ValueError, match="exists"):
        hvd.add_process_set([0, size - 1])
    with pytest.raises(ValueError, match="must be some of"):
        hvd.add_process_set([0, size])
    assert hvd.remove_process_set(last) is True
    assert hvd.remove_process_set(last) is False
    assert hvd.remove_process_set(hvd.global_process_set) is False
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(x, process_set=last)
    assert hvd.global_process_set.size() == size
    assert hvd.global_process_set.ranks == list(range(size))


def check_objects() -> None:
    rank, size = hvd.rank(), hvd.size()
    thing = {"rank": rank, "blob": b"x" * (100_000 * rank), "nested": [1, (2.5, None)]}
    for root in range(size):
        got = hvd.broadcast_object(thing if rank == root else None, root_rank=root, name="thing")
        assert got["rank"] == root
        assert len(got["blob"]) == 100_000 * root
        assert got["nested"] == [1, (2.5, None)]
    everyone = hvd.allgather_object(thing)
    assert [one["rank"] for one in everyone] == list(range(size))
    assert [len(one["blob"]) for one in everyone] == [100_000 * r for r in range(size)]


def check_sparse() -> None:
    rank, size = hvd.rank(), hvd.size()

    def made(r: int) -> Any:
        rows = torch.tensor([[r, 4, 4][: 3 - r % 2]])
        return torch.sparse_coo_tensor(rows, torch.ones(rows.shape[1], 2) * (r + 1), (6, 2))

    for op, divisor in ((hvd.Sum, 1), (hvd.Average, size)):
        result = hvd.sparse_allreduce_async(made(rank), "s", op)()
        assert result.is_sparse
        assert_same(result.to_dense(), sum(made(r).to_dense() for r in range(size)) / divisor, op)
    with pytest.raises(ValueError):
        hvd.sparse_allreduce_async(made(rank), "s", hvd.Max)
    for moves in (hvd.allgather, hvd.alltoall):  # that ends nothing
        with pytest.raises(ValueError, match="required to be dense"):
            moves(made(rank))


def check_default_device() -> None:
    """Results of CPU tensors are on the CPU whatever device the script makes its tensors on, in any thread."""
    everyone = [torch.full((3,), float(rank), device="cpu") for rank in range(hvd.size())]
    own = mine(everyone)
    torch.set_default_device("meta")
    try:
        for _ in range(70):  # until the order is locked, and calls start in this thread
            assert hvd.allgather(own, name="gathered").tolist() == torch.cat(everyone).tolist()
            assert hvd.allreduce(own, op=hvd.Sum).tolist() == sum(everyone).tolist()
            assert hvd.broadcast(own, hvd.size() - 1).tolist() == everyone[-1].tolist()
            assert hvd.alltoall(own, [3] + [0] * (hvd.size() - 1))[1].device.type == "cpu"
        sparse = hvd.sparse_allreduce_async(own.to_sparse(), "sparse", hvd.Sum)()
        assert sparse.to_dense().tolist() == sum(everyone).tolist()
    finally:
        torch.set_default_device(None)


def check_compression() -> None:
    for compression, wire in ((hvd.Compression.fp16, torch.float16), (hvd.Compression.bf16, torch.bfloat16)):
        values = tensors_of_all((50,), torch.float32)
        small, ctx = compression.compress(mine(values))
        assert small.dtype == wire
        assert_same(compression.decompress(small, ctx), mine(values), "there and back")
        got = hvd.allreduce(mine(values), op=hvd.Sum, compression=compression)
        assert_same(got, sum(values), compression)
        whole = torch.arange(3)
        assert compression.compress(whole)[0] is whole


def check_restart() -> None:
    for _ in range(3):
        hvd.shutdown()
        assert not hvd.is_initialized()
        with pytest.raises(ValueError, match="Horovod has not been initialized"):
            hvd.rank()
        some = hvd.ProcessSet([1, 0])
        hvd.init(process_sets=[some])
        hvd.init()  # does nothing
        assert some.process_set_id == 1
        if some.included():
            total = hvd.allreduce(torch.ones(3), op=hvd.Sum, process_set=some)
            assert_same(total, torch.full((3,), 2.0), "in a set")
        total = hvd.allreduce(torch.ones(3), op=hvd.Sum)
        assert_same(total, torch.full((3,), float(hvd.size())), "after init")
    hvd.remove_process_set(some)


def check_init_after_a_failure() -> None:
    """It does not hide the failure; the job begins anew once all ranks have left it."""
    if hvd.rank() == 0:
        slipstream.world().abort("no more")
    with pytest.raises(hvd.HorovodInternalError, match="no more"):
        hvd.allreduce(torch.ones(3))
    for init in (hvd.init, slipstream.init):
        with pytest.raises(slipstream.Aborted, match=r"rank 0 .*: no more.* call shutdown\(\) first, on all"):
            init()
    hvd.shutdown()
    hvd.init()
    hvd.init()
    assert_same(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), float(hvd.size())), "anew")


def check_numbers() -> tuple[int, ...]:
    assert hvd.is_initialized()
    assert hvd.gloo_built()
    assert hvd.nccl_built() == 0
    assert not hvd.mpi_enabled()
    hvd.barrier()
    return hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()


def check_factors() -> None:
    """float32 numbers are multiplied by the factor as a float32, float64 ones by all of it."""
    for dtype in (torch.float32, torch.float64):
        x = (torch.arange(1, 1 + 4 * hvd.size()) / 7).to(dtype)
        factor = torch.tensor(0.1, dtype=dtype)
        rows = slice(4 * hvd.rank(), 4 * hvd.rank() + 4)
        for name in (None, "x"):
            before = {"op": hvd.Sum, "name": name, "prescale_factor": 0.1}
            after = {"op": hvd.Sum, "name": name, "postscale_factor": 0.1}
            for options, want in ((before, x * factor * hvd.size()), (after, x * hvd.size() * factor)):
                assert_same(hvd.allreduce(x, **options), want, options)
                assert_same(hvd.grouped_allreduce([x], **options)[0], want, options)
                assert_same(hvd.reducescatter(x, **options), want[rows], options)


CHECKS = [
    check_allreduce,
    check_arguments,
    check_factors,
    check_strides,
    check_handles,
    check_grouped,
    check_reducescatter,
    check_allgather,
    check_broadcast,
    check_alltoall,
    check_process_sets,
    check_objects,
    check_sparse,
    check_default_device,
    check_compression,
    check_restart,
    check_init_after_a_failure,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_on_three_ranks(three: Any, check: Any) -> None:
    three(check)


@pytest.mark.parametrize(
    "check", [check_allreduce, check_grouped, check_alltoall, check_objects], ids=lambda check: check.__name__
)
def test_on_two_ranks(two: Any, check: Any) -> None:
    two(check)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_numbers(jobs: Any, size: int) -> None:
    assert jobs[size](check_numbers) == [(rank, size, rank, size, 0, 1) for rank in range(size)]


@pytest.mark.parametrize("check", [check_allreduce, check_broadcast, check_reducescatter])
def test_alone(jobs: Any, check: Any) -> None:
    jobs[1](check)


def test_public_names_are_horovods() -> None:
    """Every name scripts may use is there, in the positional order they may rely on."""
    scales = ["prescale_factor", "postscale_factor"]
    reduced = ["average", "name", "op", *scales, "process_set"]
    signatures = {
        "allreduce": ["tensor", "average", "name", "compression", "op", *scales, "process_set"],
        "allreduce_async": ["tensor", *reduced],
        "allreduce_": ["tensor", *reduced],
        "allreduce_async_": ["tensor", *reduced],
        "grouped_allreduce": ["tensors", "average", "name", "compression", "op", *scales, "process_set"],
        "grouped_allreduce_async": ["tensors", *reduced],
        "grouped_allreduce_": ["tensors", *reduced],
        "grouped_allreduce_async_": ["tensors", *reduced],
        "sparse_allreduce_async": ["tensor", "name", "op", "process_set"],
        "allgather": ["tensor", "name", "process_set"],
        "allgather_async": ["tensor", "name", "process_set"],
        "grouped_allgather": ["tensors", "name", "process_set"],
        "grouped_allgather_async": ["tensors", "name", "process_set"],
        "broadcast": ["tensor", "root_rank", "name", "process_set"],
        "broadcast_": ["tensor", "root_rank", "name", "process_set"],
        "broadcast_async": ["tensor", "root_rank", "name", "process_set"],
        "broadcast_async_": ["tensor", "root_rank", "name", "process_set"],
        "alltoall": ["tensor", "splits", "name", "process_set"],
        "alltoall_async": ["tensor", "splits", "name", "process_set"],
        "reducescatter": ["tensor", "name", "compression", "op", "process_set", *scales],
        "reducescatter_async": ["tensor", "name", "op", "process_set", *scales],
        "grouped_reducescatter": ["tensors", "name", "compression", "op", "process_set", *scales],
        "grouped_reducescatter_async": ["tensors", "name", "op", "process_set", *scales],
        "barrier": ["process_set"],
        "poll": ["handle"],
        "synchronize": ["handle"],
        "broadcast_parameters": ["params", "root_rank"],
        "broadcast_optimizer_state": ["optimizer", "root_rank", "model"],
        "broadcast_object": ["obj", "root_rank", "name", "process_set"],
        "allgather_object": ["obj", "name"],
        "init": ["comm", "process_sets"],
        "DistributedOptimizer": [
            "optimizer",
            "named_parameters",
            "compression",
            "backward_passes_per_step",
            "op",
            "gradient_predivide_factor",
            "num_groups",
            "groups",
            "sparse_as_dense",
            "process_set",
        ],
    }
    for name, parameters in signatures.items():
        assert name in hvd.__all__
        assert list(inspect.signature(getattr(hvd, name)).parameters)[: len(parameters)] == parameters, name
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
