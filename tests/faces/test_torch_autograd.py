"""Gradients of the operations against those worked out by hand (Horovod's rules, see
faces/torch/autograd.py).
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream.torch as hvd  # noqa: E402


def made(rows: int, rank: int, columns: int = 2) -> Any:
    generator = torch.Generator().manual_seed(rank)
    return torch.rand((rows, columns), generator=generator, dtype=torch.float64)


def all_ranks(rows: int) -> list[Any]:
    return [made(rows, rank) for rank in range(hvd.size())]


def gradient(operation: Any, rows: int, weight: Any) -> Any:
    """d sum(weight * operation(x)) / dx on this rank, by autograd."""
    x = made(rows, 100 + hvd.rank()).requires_grad_()
    (operation(x) * weight).sum().backward()
    return x.grad


def check_allreduce() -> None:
    weights = all_ranks(3)
    mine = weights[hvd.rank()]
    total = sum(weights)
    close = torch.testing.assert_close
    close(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), 3, mine), total)
    close(gradient(hvd.allreduce, 3, mine), total / hvd.size())
    scaled = gradient(
        lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0), 3, mine
    )
    close(scaled, 6 * total)
    both = gradient(lambda x: sum(hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum)), 3, mine)
    close(both, 3 * total)
    half = gradient(lambda x: hvd.allreduce(x.float(), compression=hvd.Compression.fp16), 3, mine)
    close(half, total / hvd.size(), rtol=1e-2, atol=1e-2)
    with pytest.raises(NotImplementedError):
        gradient(lambda x: hvd.allreduce(x, op=hvd.Max), 3, mine)


def check_twice() -> None:
    x = made(3, hvd.rank()).requires_grad_()
    (grad,) = torch.autograd.grad((hvd.allreduce(x, op=hvd.Sum) ** 2).sum(), x, create_graph=True)
    grad.sum().backward()
    # grad = n * 2 * sum(x); its gradient is reduced over the ranks twice
    torch.testing.assert_close(x.grad, torch.full_like(x, 2.0 * hvd.size() ** 2))


def check_allgather() -> None:
    size, rank = hvd.size(), hvd.rank()
    rows = [r + 1 for r in range(size)]
    weights = all_ranks(sum(rows))
    got = gradient(hvd.allgather, rows[rank], weights[rank])
    average = sum(weights) / size
    torch.testing.assert_close(got, average.split(rows)[rank])


def check_broadcast() -> None:
    weights = all_ranks(3)
    for root in range(hvd.size()):
        got = gradient(lambda x, root=root: hvd.broadcast(x, root), 3, weights[hvd.rank()])
        want = sum(weights) / hvd.size() if hvd.rank() == root else torch.zeros(3, 2, dtype=torch.float64)
        torch.testing.assert_close(got, want)


def check_alltoall() -> None:
    size, rank = hvd.size(), hvd.rank()
    splits = [[1 + (sender + 2 * receiver) % 3 for receiver in range(size)] for sender in range(size)]
    received = [[splits[r][me] for r in range(size)] for me in range(size)]
    weights = [made(sum(received[me]), me) for me in range(size)]
    got = gradient(lambda x: hvd.alltoall(x, splits[rank])[0], sum(splits[rank]), weights[rank])
    want = torch.cat([weights[r].split(received[r])[rank] for r in range(size)])
    torch.testing.assert_close(got, want)


def check_reducescatter() -> None:
    size, rank = hvd.size(), hvd.rank()
    rows = [3, 2, 2][:size]
    weights = [made(rows[r], r) for r in range(size)]
    whole = torch.cat(weights)
    n = sum(rows)
    torch.testing.assert_close(gradient(hvd.reducescatter, n, weights[rank]), whole)
    total = gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), n, weights[rank])
    torch.testing.assert_close(total, whole * size)


@pytest.mark.parametrize(
    "check",
    [check_allreduce, check_twice, check_allgather, check_broadcast, check_alltoall, check_reducescatter],
    ids=lambda check: check.__name__.removeprefix("check_"),
)
def test_gradients(three: Any, check: Any) -> None:
    three(check)
