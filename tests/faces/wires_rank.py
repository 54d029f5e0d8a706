"""One of two hosts whose job has the wire int8."""

from __future__ import annotations

import torch

import slipstream.torch as hvd

LEAST = 16 * 1024  # elements: 64 KiB
BOUND = 1 / 127

hvd.init()


def numbers(rank: int, count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(rank))


def error_of(found: torch.Tensor, count: int) -> float:
    """How far it is from the sum, by the largest number of that."""
    wanted = sum(numbers(rank, count).double() for rank in range(hvd.size()))
    assert isinstance(wanted, torch.Tensor)
    if found.numel() < count:
        wanted = wanted.view(hvd.size(), -1)[hvd.rank()]
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


Compression = hvd.Compression
for count, rounded in ((LEAST, True), (LEAST - 2, False)):
    for found in (
        hvd.allreduce(numbers(hvd.rank(), count), op=hvd.Sum),
        hvd.allreduce_(numbers(hvd.rank(), count), op=hvd.Sum, name="in place"),
        hvd.synchronize(hvd.allreduce_async(numbers(hvd.rank(), count), op=hvd.Sum)),
        hvd.allreduce(numbers(hvd.rank(), count).requires_grad_(), op=hvd.Sum).detach(),
        hvd.grouped_allreduce([numbers(hvd.rank(), count)], op=hvd.Sum)[0],
        hvd.reducescatter(numbers(hvd.rank(), count), op=hvd.Sum),
        hvd.grouped_reducescatter([numbers(hvd.rank(), count)], op=hvd.Sum)[0],
    ):
        error = error_of(found, count)
        assert error <= 3 * BOUND if rounded else error < 1e-6, (count, error)
        assert not rounded or error > 1e-5, (count, error)
    exact = hvd.allreduce(numbers(hvd.rank(), count), op=hvd.Sum, compression=Compression.exact)
    assert error_of(exact, count) < 1e-6
    # What a call asks for comes before the job's wire; a cast of the user's is the whole compression.
    half = hvd.allreduce(numbers(hvd.rank(), count), op=hvd.Sum, compression=Compression.fp16)
    assert error_of(half, count) < 2.0**-9
finer = hvd.allreduce(numbers(hvd.rank(), LEAST), op=hvd.Sum, compression=Compression.wire("f16"))
assert 0 < error_of(finer, LEAST) < 2.0**-9
hvd.shutdown()
