"""Every operation of c10d, every dtype, strange layouts and sizes, against values computed without any back end."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from faces.torch_distributed.reference import (
    DTYPES,
    LAYOUTS,
    can_reduce,
    close,
    laid_out,
    reduced,
    values,
)
from slipstream.faces.torch_distributed import operands

REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
TCP = {"SLIPSTREAM_TRANSPORT": "tcp"}


def _inputs(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    return [values(rank, dtype, shape, seed) for rank in range(dist.get_world_size())]


# ---- reductions


def check_reductions(dtypes: list[torch.dtype]) -> None:
    rank = dist.get_rank()
    for dtype in dtypes:
        inputs = _inputs(dtype, (3, 5))
        for name in REDUCTIONS:
            op = getattr(dist.ReduceOp, name)
            for layout in LAYOUTS:
                what = f"{name} {dtype} {layout}"
                mine = laid_out(inputs[rank], layout)
                if not can_reduce(dtype, name):
                    continue
                expected = reduced(inputs, name)
                dist.all_reduce(mine, op)
                close(mine, expected, f"all_reduce {what}")
                mine = laid_out(inputs[rank], layout)
                dist.reduce(mine, dist.get_world_size() - 1, op)
                root = rank == dist.get_world_size() - 1
                close(mine, expected if root else inputs[rank], f"reduce {what}")


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_reduce_and_reduce_of_every_dtype_and_layout(c10d: Any, size: int) -> None:
    c10d(check_reductions, list(DTYPES), size=size)


def check_undefined_reductions() -> None:
    for dtype, name in ((torch.float32, "BAND"), (torch.complex64, "MAX"), (torch.bool, "AVG")):
        with pytest.raises((ValueError, RuntimeError)):
            dist.all_reduce(torch.ones(2, dtype=dtype), getattr(dist.ReduceOp, name))
    dist.barrier()  # the group still works


def test_undefined_reductions_are_errors_on_the_spot(c10d: Any) -> None:
    c10d(check_undefined_reductions)


def check_reduce_scatter(dtypes: list[torch.dtype]) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in dtypes:
        name = "BXOR" if dtype is torch.bool else "SUM"
        op = getattr(dist.ReduceOp, name)
        inputs = _inputs(dtype, (2 * size, 3))
        expected = reduced(inputs, name)
        for layout in LAYOUTS:
            out = laid_out(torch.zeros(2, 3, dtype=dtype), layout)
            dist.reduce_scatter_tensor(out, laid_out(inputs[rank], layout), op)
            close(out, expected[2 * rank : 2 * rank + 2], f"reduce_scatter_tensor {dtype} {layout}")
        # a list of blocks of different sizes
        ends = [r * (r + 1) // 2 for r in range(size + 1)]
        uneven = _inputs(dtype, (ends[-1], 2), seed=1)
        blocks = [slice(ends[r], ends[r + 1]) for r in range(size)]
        out = torch.zeros(rank + 1, 2, dtype=dtype)
        dist.reduce_scatter(out, [uneven[rank][block].clone() for block in blocks], op)
        close(out, reduced(uneven, name)[blocks[rank]], f"reduce_scatter uneven {dtype}")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_reduce_scatter(c10d: Any, size: int) -> None:
    c10d(check_reduce_scatter, list(DTYPES), size=size)


def check_factors_of_floats() -> None:
    """PREMUL_SUM by a number makes no copy of a tensor, and gives the bits of PyTorch's own product."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def copied(*_: Any) -> None:
        raise AssertionError("the tensor is multiplied as a whole")

    with mock.patch.object(operands, "premultiplied", copied):
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            for factor in (1 / 3, -0.1, 3.0, 1.0, 1e-7):
                for count in (1, 2 * 1001, 2 * 100_003):
                    given = [
                        torch.randn(count, generator=torch.Generator().manual_seed(r)) for r in range(size)
                    ]
                    inputs = [one.to(dtype) for one in given]
                    expected = inputs[0] * factor
                    for one in inputs[1:]:
                        expected = expected + one * factor
                    op = dist._make_nccl_premul_sum(factor)  # type: ignore[attr-defined]
                    what = f"PREMUL_SUM by {factor} of {count} {dtype}"
                    mine = inputs[rank].clone()
                    dist.all_reduce(mine, op)
                    assert torch.equal(mine, expected), what
                    mine = inputs[rank].clone()
                    dist.reduce(mine, 0, op)
                    assert torch.equal(mine, inputs[rank] if rank else expected), f"{what}, reduce"
                    if count % size == 0:
                        out = torch.empty(count // size, dtype=dtype)
                        mine = inputs[rank].clone()
                        dist.reduce_scatter_tensor(out, mine, op)
                        assert torch.equal(out, expected.chunk(size)[rank]), f"{what}, reduce_scatter"
                        assert torch.equal(mine, inputs[rank]), f"{what}: the input has changed"


@pytest.mark.parametrize("size", [1, 2])  # the order of more is the plan's
def test_factors_of_floats(c10d: Any, size: int) -> None:
    c10d(check_factors_of_floats, size=size, environment=TCP)


def check_reduction_extras() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    scaled = torch.full((4,), float(rank + 1))
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))  # type: ignore[attr-defined]
    close(scaled, torch.full((4,), size * (size + 1) / 4), "PREMUL_SUM")
    scaled = torch.full((4,), float(rank + 1))
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(torch.tensor([2.0])))  # type: ignore[attr-defined]
    close(scaled, torch.full((4,), float(size * (size + 1))), "PREMUL_SUM by a tensor")
    own = torch.full((4,), float(rank + 1))
    dist.all_reduce(own, dist._make_nccl_premul_sum(0.5 + rank))  # type: ignore[attr-defined]
    close(own, torch.full((4,), sum((r + 1) * (r + 0.5) for r in range(size))), "each rank's own PREMUL_SUM")
    for count in (0, 1, 7, 4097, 300_001):
        big = torch.arange(count, dtype=torch.float32) + rank
        dist.all_reduce(big)
        close(big, size * torch.arange(count, dtype=torch.float32) + sum(range(size)), f"{count} elements")
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    close(scalar, torch.tensor(float(sum(range(size)))), "0-dim")
    indices = torch.tensor([[rank, size]])
    dense = torch.cat([torch.arange(1, size + 1).float(), torch.tensor([size * (size + 1) / 2])])
    for profiled in (contextlib.nullcontext(), torch.autograd.profiler.profile()):
        sparse = torch.sparse_coo_tensor(indices, torch.ones(2, 3) * (rank + 1), (size + 1, 3))
        with profiled:
            dist.all_reduce(sparse)
        close(sparse.to_dense(), dense[:, None].expand(size + 1, 3).contiguous(), "sparse")
    many = [torch.full((n,), float(rank)) for n in (1, 5, 70_000)]
    with dist._coalescing_manager():  # type: ignore[attr-defined]
        for tensor in many:
            dist.all_reduce(tensor)
    for tensor in many:
        close(tensor, torch.full_like(tensor, float(sum(range(size)))), "coalesced")
    for later in (False, True):
        twice = torch.full((4,), float(rank))
        future = dist.all_reduce_coalesced([twice, twice, twice[1:3]], async_op=later)  # type: ignore[attr-defined]
        if future is not None:
            future.wait()
        close(twice, torch.full_like(twice, float(sum(range(size)))), "a tensor twice")
        # Large enough that what is done first could be seen by what is done later.
        for some in (slice(1, 3), slice(700_000, 710_000)):
            for small_first in (False, True):
                large = torch.full((1_000_000,), float(rank + 1))
                both = [large[some], large] if small_first else [large, large[some]]
                future = dist.all_reduce_coalesced(both, async_op=later)  # type: ignore[attr-defined]
                if future is not None:
                    future.wait()
                close(large, torch.full_like(large, size * (size + 1) / 2), "a tensor and a part of it")
        matrix = torch.full((500, 200), float(rank + 1))
        future = dist.all_reduce_coalesced([matrix[:, :2], matrix], async_op=later)  # type: ignore[attr-defined]
        if future is not None:
            future.wait()
        close(matrix, torch.full_like(matrix, size * (size + 1) / 2), "columns and all")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_other_reductions(c10d: Any, size: int) -> None:
    c10d(check_reduction_extras, size=size)


# ---- moving data


def check_movement(dtypes: list[torch.dtype]) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in dtypes:
        inputs = _inputs(dtype, (2, 3))
        for layout in LAYOUTS:
            what = f"{dtype} {layout}"
            mine = laid_out(inputs[rank], layout)
            dist.broadcast(mine, size - 1)
            close(mine, inputs[size - 1], f"broadcast {what}")
            mine = laid_out(inputs[rank], layout)
            outs = [laid_out(torch.zeros(2, 3, dtype=dtype), layout) for _ in range(size)]
            dist.all_gather(outs, mine)
            for r in range(size):
                close(outs[r], inputs[r], f"all_gather {what}")
            outs = [laid_out(torch.zeros(2, 3, dtype=dtype), layout) for _ in range(size)]
            dist.gather(mine, outs if rank == 0 else None, dst=0)
            for r in range(size if rank == 0 else 0):
                close(outs[r], inputs[r], f"gather {what}")
            out = laid_out(torch.zeros(2, 3, dtype=dtype), layout)
            dist.scatter(out, [laid_out(t, layout) for t in inputs] if rank == 0 else None, src=0)
            close(out, inputs[rank], f"scatter {what}")
            outs = [laid_out(torch.zeros(2, 3, dtype=dtype), layout) for _ in range(size)]
            blocks = [laid_out(values(rank, dtype, (2, 3), seed=10 + r), layout) for r in range(size)]
            dist.all_to_all(outs, blocks)
            for r in range(size):
                close(outs[r], values(r, dtype, (2, 3), seed=10 + rank), f"all_to_all {what}")
            flat = laid_out(torch.zeros(2 * size, 3, dtype=dtype), layout)
            dist.all_gather_into_tensor(flat, mine)
            close(flat, torch.cat(inputs), f"all_gather_into_tensor {what}")
        stacked = torch.zeros(size, 2, 3, dtype=dtype)
        dist.all_gather_into_tensor(stacked, inputs[rank].clone())
        close(stacked, torch.stack(inputs), f"stacked all_gather_into_tensor {dtype}")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_moving_every_dtype_and_layout(c10d: Any, size: int) -> None:
    c10d(check_movement, list(DTYPES), size=size)


def check_uneven() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    inputs = [values(r, torch.float32, (r, 4)) for r in range(size)]  # rank 0 has nothing
    outs = [torch.zeros(r, 4) for r in range(size)]
    dist.all_gather(outs, inputs[rank])
    for r in range(size):
        close(outs[r], inputs[r], "all_gather")
    outs = [torch.zeros(r, 4) for r in range(size)]
    dist.gather(inputs[rank], outs if rank == size - 1 else None, dst=size - 1)
    if rank == size - 1:
        for r in range(size):
            close(outs[r], inputs[r], "gather")
    out = torch.zeros(rank, 4)
    dist.scatter(out, inputs if rank == 0 else None, src=0)
    close(out, inputs[rank], "scatter")
    sent = [values(rank, torch.int64, (rank + r, 2), seed=r) for r in range(size)]
    outs = [torch.zeros(r + rank, 2, dtype=torch.int64) for r in range(size)]
    dist.all_to_all(outs, sent)
    for r in range(size):
        close(outs[r], values(r, torch.int64, (r + rank, 2), seed=rank), "all_to_all")
    splits = [rank + r for r in range(size)]
    flat = torch.zeros(sum(splits), 2, dtype=torch.int64)
    dist.all_to_all_single(flat, torch.cat(sent), splits, splits)
    close(flat, torch.cat(outs), "all_to_all_single")
    even = torch.zeros(2 * size)
    dist.all_to_all_single(even, torch.arange(2 * size).float() + 100 * rank)
    own = torch.arange(2 * rank, 2 * rank + 2).float()
    close(even, torch.cat([own + 100 * r for r in range(size)]), "all_to_all_single, even")


@pytest.mark.parametrize("size", [2, 3, 4])
def test_blocks_of_different_sizes(c10d: Any, size: int) -> None:
    c10d(check_uneven, size=size)


def check_aliases() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.zeros(size, 1000)
    whole[rank] = rank + 1
    dist.all_gather_into_tensor(whole, whole[rank])  # as FSDP does
    close(whole, torch.arange(1.0, size + 1)[:, None].expand(size, 1000).contiguous(), "gather in place")
    for target in range(size):  # a reduce-scatter into any part of its own input
        whole = torch.arange(size * 1000, dtype=torch.float32).view(size, 1000) * (rank + 1)
        dist.reduce_scatter_tensor(whole[target], whole)
        expected = torch.arange(size * 1000, dtype=torch.float32).view(size, 1000)[rank] * (
            size * (size + 1) / 2
        )
        close(whole[target], expected, f"reduce-scatter into part {target} of the input")
    whole = torch.arange(2.0 * size) + 10 * rank
    dist.all_to_all_single(whole, whole)
    own = torch.arange(2.0 * rank, 2.0 * rank + 2)
    close(whole, torch.cat([own + 10 * r for r in range(size)]), "all-to-all in place")


@pytest.mark.parametrize("size", [2, 3])
def test_inputs_that_overlap_with_outputs(c10d: Any, size: int) -> None:
    c10d(check_aliases, size=size)


def check_wrong_arguments() -> None:
    size = dist.get_world_size()
    with pytest.raises((ValueError, RuntimeError), match="world_size"):
        dist.all_gather_into_tensor(torch.zeros(3 * size + 1), torch.zeros(3))
    with pytest.raises((ValueError, RuntimeError), match="one tensor per rank"):
        dist.reduce_scatter(torch.zeros(3), [torch.zeros(3)] * (size + 1))
    with pytest.raises((ValueError, RuntimeError), match=r"(?i)split"):
        dist.all_to_all_single(torch.zeros(4), torch.zeros(4), [1] * size, [9] * size)
    with pytest.raises((ValueError, RuntimeError)):
        dist.all_gather([torch.zeros(2)] * size, torch.zeros(3))
    dist.barrier()


def test_wrong_arguments_are_errors_on_the_spot(c10d: Any) -> None:
    c10d(check_wrong_arguments)


# ---- between two ranks


def check_point_to_point(count: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    received = [torch.zeros(count) for _ in range(3)]
    works: list[Any] = [dist.irecv(received[tag], before, tag=tag) for tag in (2, 0, 1)]
    works += [dist.isend(torch.full((count,), 10.0 * rank + tag), after, tag=tag) for tag in range(3)]
    for work in works:
        work.wait()
    for tag in range(3):
        close(received[tag], torch.full((count,), 10.0 * before + tag), f"tag {tag}")
    strided = torch.zeros(count, 2)
    source = torch.arange(2.0 * count).view(2, count).t()
    operations = [dist.P2POp(dist.irecv, strided.t(), before), dist.P2POp(dist.isend, source.t(), after)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    close(strided, source, "batch_isend_irecv")
    if rank == 0:
        seen = {}
        for _ in range(size - 1):
            one = torch.zeros(count)
            seen[dist.recv(one, tag=7)] = one
        assert sorted(seen) == list(range(1, size))
        for sender, tensor in seen.items():
            close(tensor, torch.full((count,), float(sender)), "from any source")
    else:
        dist.send(torch.full((count,), float(rank)), 0, tag=7)


@pytest.mark.parametrize("count", [1, 100_000])
@pytest.mark.parametrize("size", [2, 3])
def test_sends_and_receives(c10d: Any, size: int, count: int) -> None:
    c10d(check_point_to_point, count, size=size)


# ---- works, futures, functional collectives


def check_async() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = float(sum(range(size)))
    tensors = [torch.full((n,), float(rank)) for n in (1, 1000, 500_000)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work, tensor in zip(works, tensors, strict=True):
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        assert work.result()[0] is tensor
        close(tensor, torch.full_like(tensor, total), "async")
    tensor = torch.full((100_000,), float(rank))
    future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda f: f.value()[0] / size)
    close(future.wait(), torch.full_like(tensor, total / size), "future")
    # callbacks that wait for further operations, more of them than there are threads at first
    futures = []
    for i in range(6):
        inner = torch.full((4,), float(i))

        def again(_: Any, inner: torch.Tensor = inner) -> torch.Tensor:
            dist.all_reduce(inner, group=_groups[int(inner[0])], async_op=True).get_future().wait()
            return inner

        futures.append(dist.all_reduce(torch.ones(50_000), async_op=True).get_future().then(again))
    for i, one in enumerate(futures):
        close(one.wait(), torch.full((4,), float(i * size)), "a callback that communicates")
    strided = torch.full((50, 50), float(rank))
    future = dist.all_reduce(strided[:, ::2], async_op=True).get_future()
    future.wait()
    close(strided[:, ::2].contiguous(), torch.full((50, 25), total), "future of a strided tensor")
    close(strided[:, 1::2].contiguous(), torch.full((50, 25), float(rank)), "what lies between")


_groups: dict[int, Any] = {}


def check_async_with_groups() -> None:
    for i in range(6):  # each callback has a group to itself: their order may differ between ranks
        _groups[i] = dist.new_group()
    check_async()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_works_and_futures(c10d: Any, size: int) -> None:
    c10d(check_async_with_groups, size=size, fresh=True)


def check_functional() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    ops, group = torch.ops._c10d_functional, dist.group.WORLD.group_name
    mine, ranks = torch.full((2,), float(rank)), torch.arange(float(size))
    total, every = torch.full((2,), float(sum(range(size)))), ranks.repeat_interleave(2)
    wait = ops.wait_tensor
    close(wait(ops.all_reduce(mine, "sum", group)), total, "all_reduce")
    close(wait(ops.all_reduce_(mine.clone(), "avg", group)), total / size, "all_reduce_")
    conjugated = torch.complex(mine, mine).conj()  # lazily
    close(
        wait(ops.all_reduce(conjugated, "sum", group)).resolve_conj(),
        torch.complex(total, -total),
        "conjugated",
    )
    for one in ops.all_reduce_coalesced([mine, mine], "sum", group):
        close(wait(one), total, "all_reduce_coalesced")
    close(wait(ops.all_gather_into_tensor(mine, size, group)), every, "all_gather")
    out = torch.zeros(2 * size)
    close(wait(ops.all_gather_into_tensor_out(mine, size, group, out=out)), every, "all_gather, out")
    for one in ops.all_gather_into_tensor_coalesced([mine, mine], size, group):
        close(wait(one), every, "all_gather_coalesced")
    close(
        wait(ops.reduce_scatter_tensor(every, "sum", size, group)),
        torch.full((2,), float(rank * size)),
        "scatter",
    )
    for one in ops.reduce_scatter_tensor_coalesced([every], "sum", size, group):
        close(wait(one), torch.full((2,), float(rank * size)), "reduce_scatter_coalesced")
    sent = ranks + 10 * rank
    close(wait(ops.all_to_all_single(sent, [1] * size, [1] * size, group)), 10 * ranks + rank, "all_to_all")
    close(wait(ops.broadcast(mine, size - 1, group)), torch.full((2,), size - 1.0), "broadcast")
    peer = size - 1 - rank
    if size % 2 == 0:
        got = torch.zeros(2)
        for one in ops.batch_p2p_ops(["isend", "irecv"], [peer, peer], [0, 0], [mine, got], group):
            wait(one)
        close(got, torch.full((2,), float(peer)), "batch_p2p_ops")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_functional_collectives(c10d: Any, size: int) -> None:
    c10d(check_functional, size=size)


@pytest.mark.parametrize("check", [check_reduction_extras, check_uneven, check_aliases, check_functional])
def test_over_tcp(c10d: Any, check: Any) -> None:
    c10d(check, size=3, environment=TCP)
