"""One of several ranks that are hosts of their own, whose sums travel in fewer bits: wire_rank.py WIRE FILE."""

from __future__ import annotations

import os
import sys

import numpy as np
import torch
import torch.distributed as dist

import slipstream

WIRE = sys.argv[1]
ODD = 40_013  # elements
# Of the largest number of the tensor: what a rank's part may be off, and each hop's sum.
PRECISION = {"exact": 2.0**-22, "bf16": 2.0**-8, "f16": 2.0**-10, "f8": 2.0**-4, "int8": 1 / 127}[WIRE]


def sent() -> int:
    return sum(link.sent for link in slipstream.link_statistics())


def numbers(rank: int, count: int = ODD) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(rank).standard_normal(count).astype(np.float32))


def check_values(rank: int, size: int) -> None:
    all_ = torch.stack([numbers(r) for r in range(size)]).double()
    for op, wanted in ((dist.ReduceOp.SUM, all_.sum(0)), (dist.ReduceOp.AVG, all_.mean(0))):
        bound = float(wanted.abs().max()) * PRECISION * size
        for shape, asynchronous in (((ODD,), False), ((ODD,), True), ((1, ODD, 1), True)):
            x = numbers(rank).reshape(shape)
            work = dist.all_reduce(x, op, async_op=asynchronous)
            if asynchronous:
                work.wait()
            error = float((x.view(-1).double() - wanted).abs().max())
            assert error <= bound, (op, shape, asynchronous, error, bound)
            if WIRE != "exact":
                assert error > 0
            check_same_bits(x)


def check_same_bits(x: torch.Tensor) -> None:
    bits = x.view(-1).view(torch.int32).clone()
    low, high = bits.clone(), bits.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    assert torch.equal(low, high)


def check_scattered(rank: int, size: int) -> None:
    """Of a reduce-scatter, as FSDP uses it: blocks of one tensor, a list of tensors, odd blocks."""
    for count in (20_032, 20_033):
        all_ = torch.stack([numbers(r, count * size) for r in range(size)]).double().view(size, size, count)
        for op, wanted in ((dist.ReduceOp.SUM, all_.sum(0)), (dist.ReduceOp.AVG, all_.mean(0))):
            bound = float(wanted.abs().max()) * PRECISION * size
            mine = numbers(rank, count * size)
            kept = mine.clone()
            one, two = torch.empty(count), torch.empty(count, 2)[:, 0]
            dist.reduce_scatter_tensor(one, mine, op)
            work = dist.reduce_scatter(two, list(mine.view(size, count)), op, async_op=True)
            work.wait()
            for found in (one, two):
                error = float((found.double() - wanted[rank]).abs().max())
                assert error <= bound, (count, op, error, bound)
                assert WIRE == "exact" or error > 0
            assert torch.equal(mine, kept)
            in_place = mine.view(size, count)[rank]
            dist.reduce_scatter_tensor(in_place, mine, op)
            assert float((in_place.double() - wanted[rank]).abs().max()) <= bound


def check_layouts(rank: int, size: int) -> None:
    """Ranks whose tensors lie differently in memory, several at once, and copies of memory that is used twice."""
    x = torch.full((ODD, 2), rank + 1.0)
    column = x[:, 0] if rank else torch.full((ODD,), rank + 1.0)
    dist.all_reduce(column)
    total = size * (size + 1) / 2
    assert torch.allclose(column, torch.full_like(column, total), rtol=0.02)
    assert (x[:, 1] == rank + 1).all()
    several = [torch.full((ODD,), rank + 1.0), torch.full((10,), rank + 1.0)]
    dist.all_reduce_coalesced(several)
    for one in several:
        assert torch.allclose(one, torch.full_like(one, total), rtol=0.02)


def check_exact(rank: int, size: int) -> None:
    """What is small, of another dtype or another operation."""
    total = torch.stack([numbers(r) for r in range(size)])
    for x, op, wanted in (
        (numbers(rank)[:1000], dist.ReduceOp.SUM, total[:, :1000].sum(0)),
        (numbers(rank), dist.ReduceOp.MAX, total.max(0).values),
    ):
        dist.all_reduce(x, op)
        assert torch.allclose(x, wanted, rtol=1e-6, atol=1e-6)
    y = numbers(rank).double()
    dist.all_reduce(y)
    assert torch.allclose(y, total.double().sum(0), rtol=1e-12, atol=1e-12)


def check_order(size: int) -> None:
    """Operations on one tensor act in the order of their calls."""
    x = torch.ones(ODD)
    works = [dist.all_reduce(x, async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    assert torch.allclose(x, torch.full_like(x, size**3), rtol=0.05), x[:3]
    x = torch.ones(ODD)
    work = dist.all_reduce(x, async_op=True)
    dist.broadcast(x, 0)
    work.wait()
    assert torch.allclose(x, torch.full_like(x, size), rtol=0.05)


def check_extremes(rank: int, size: int) -> None:
    """Finite numbers give no infinity; infinities and NaN are not lost."""
    for value in (3e5, 3e38 / size):
        x = torch.full((ODD,), value)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        assert torch.allclose(x, torch.full_like(x, value), rtol=0.02), x[:3]
    x = torch.full((ODD,), 65_000.0)
    dist.all_reduce(x)
    assert torch.allclose(x, torch.full_like(x, 65_000.0 * size), rtol=0.02), x[:3]
    for value in (float("inf"), float("nan")):
        x = torch.ones(ODD)
        if rank == size - 1:
            x[17] = value
        dist.all_reduce(x)
        assert not torch.isfinite(x[17])
        assert torch.allclose(x[256:], torch.full_like(x[256:], size), rtol=0.02)


def check_gathered(rank: int, size: int) -> None:
    """Exactly, unless SLIPSTREAM_WIRE_GATHER says otherwise; small tensors always."""
    for count, rounded in ((ODD, os.environ.get("SLIPSTREAM_WIRE_GATHER") == "1"), (100, False)):
        found = torch.empty(size * count)
        dist.all_gather_into_tensor(found, numbers(rank, count))
        wanted = torch.cat([numbers(r, count) for r in range(size)])
        assert torch.equal(found, wanted) != rounded
        assert torch.allclose(found, wanted, rtol=0.02)
        check_same_bits(found)


def check_exchanged(rank: int, size: int) -> None:
    """Exactly, unless SLIPSTREAM_WIRE_GATHER says otherwise, whatever the size; only float32."""
    rounded = os.environ.get("SLIPSTREAM_WIRE_GATHER") == "1"
    for rows, most in ((ODD, 2 * size), (3, 2 * size), (ODD, size)):
        # rank r sends rank p (r + p + 1) times so many; the third time nothing where that would be `size` times
        sent = [(rank + p + 1) % most * rows for p in range(size)]
        starts = [sum((r + p + 1) % most * rows for p in range(rank)) for r in range(size)]
        wanted = [numbers(r, 20 * rows)[starts[r] :][: sent[r]] for r in range(size)]
        mine, one = numbers(rank, 20 * rows)[: sum(sent)], torch.empty(sum(sent))
        dist.all_to_all_single(one, mine, sent, sent)
        several = [torch.empty(count) for count in sent]
        dist.all_to_all(several, list(mine.split(sent)), async_op=True).wait()
        for found in (one, torch.cat(several)):
            for r, (part, other) in enumerate(zip(found.split(sent), wanted, strict=True)):
                assert r == rank or torch.equal(part, other) != (rounded and len(part) > 0), (rows, r)
                assert torch.allclose(part, other, rtol=0.02)
        precise = torch.empty(sum(sent), dtype=torch.float64)
        dist.all_to_all_single(precise, mine.double(), sent, sent)
        assert torch.equal(precise, torch.cat(wanted).double())


def check_bytes(size: int) -> None:
    x, least = torch.ones(1 << 20), sent()
    dist.all_reduce(x)
    share = (sent() - least) / (2 * (size - 1) / size * x.nbytes)
    wanted = {"exact": 1.0, "bf16": 0.5, "f16": 0.5, "f8": 260 / 1024, "int8": 260 / 1024}[WIRE]
    assert wanted * 0.98 < share < wanted * 1.1 + 0.02, share


def main() -> None:
    rank, size = (int(os.environ[f"SLIPSTREAM_{name}"]) for name in ("RANK", "SIZE"))
    store = dist.FileStore(sys.argv[2], size)
    dist.init_process_group("slipstream", store=store, rank=rank, world_size=size)
    check_values(rank, size)
    check_scattered(rank, size)
    check_gathered(rank, size)
    check_exchanged(rank, size)
    check_layouts(rank, size)
    check_exact(rank, size)
    check_order(size)
    check_extremes(rank, size)
    check_bytes(size)
    dist.destroy_process_group()


main()
