"""Short messages of CPU tensors go without a work of the engine, among others that cannot: all are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from slipstream.faces.torch_distributed.starting import OperationStarter  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16, torch.bool, torch.int8, torch.int64, torch.complex128]
SHAPES = [(1,), (7,), (3, 341), (4096,), (70_000,), (0,), ()]


def _messages() -> Iterator[tuple[Any, int]]:
    """Tensors and their tags, as both ranks have them."""
    for round_ in range(3):
        for number, dtype in enumerate(DTYPES):
            for shape in SHAPES:
                values = torch.arange(torch.Size(shape).numel()) % 5 + round_
                yield values.reshape(shape).to(dtype), 0 if number % 2 else round_ * 1000


def check_values() -> None:
    for there in (1, 0):
        for x, tag in _messages():
            if dist.get_rank() == there:
                got = torch.zeros_like(x)
                dist.recv(got, 1 - there, tag=tag)
                assert torch.equal(got, x), (x.dtype, x.shape)
            else:
                dist.send(x, there, tag=tag)


def check_columns() -> None:
    """Tensors that do not lie as they are sent: neither end may take them for plain ones."""
    sent = torch.arange(40.0).reshape(20, 2)
    for _ in range(3):
        if dist.get_rank() == 0:
            dist.send(sent[:, 1], 1)
            dist.send(sent[:, 0].contiguous(), 1)
        else:
            got = torch.zeros(20, 2)
            dist.recv(got[:, 1], 0)
            dist.recv(got[:, 0], 0)
            assert torch.equal(got, sent)


def check_messages_that_are_awaited_in_another_order() -> None:
    other = 1 - dist.get_rank()
    for step in range(20):
        x = torch.full((5,), float(step))
        got = [torch.zeros(5) for _ in range(3)]
        works = [dist.irecv(one, other, tag=tag) for tag, one in enumerate(got[:2])]
        for tag in (2, 1, 0):
            dist.isend(x + tag, other, tag=tag).wait()
        dist.recv(got[2], other, tag=2)
        for work in reversed(works):
            work.wait()
        assert [one[0].item() for one in got] == [step, step + 1, step + 2]


def check_batches() -> None:
    other = 1 - dist.get_rank()
    for step in range(5):
        x, got = torch.full((9,), float(step)), torch.zeros(9)
        batch = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, got, other)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        assert torch.equal(got, x)


def check_a_pipeline() -> None:
    """A rank that only sends needs no works, but for the first message and where there is no room."""
    works = []

    def noted(self: OperationStarter, *arguments: Any) -> Any:
        works.append(at_once(self, *arguments))
        return works[-1]

    at_once = OperationStarter.send_at_once
    x = torch.ones(3)
    with mock.patch.object(OperationStarter, "send_at_once", noted):
        for _ in range(100):
            if dist.get_rank() == 0:
                dist.send(x, 1, tag=77)
            else:
                dist.recv(x, 0, tag=77)
    assert dist.get_rank() == 1 or any(work is not None for work in works)


CHECKS = [
    check_values,
    check_columns,
    check_messages_that_are_awaited_in_another_order,
    check_batches,
    check_a_pipeline,
]


@pytest.mark.parametrize("check", CHECKS)
def test_on_two_ranks(c10d: Any, check: Callable[[], None]) -> None:
    c10d(check, size=2)
