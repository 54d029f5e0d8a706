"""Several operations of slipstream.torch in flight on one tensor act in the order of their calls."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream.torch as hvd  # noqa: E402

COUNTS = (16, 100_000)


def _is(tensor: Any, value: float) -> None:
    assert tensor.eq(value).all(), (value, tensor.flatten()[:4])


def _synchronize(*handles: int) -> list[Any]:
    return [hvd.synchronize(handle) for handle in handles]


def check_tensors_that_are_not_plain() -> None:
    n, rank = hvd.size(), hvd.rank()
    for count in COUNTS:
        memory = torch.ones(count, 2)
        x = memory[:, 0]
        handles = [hvd.allreduce_async_(tensor, op=hvd.Sum) for tensor in (x, x, memory, x)]
        copy = hvd.allreduce_async(x, op=hvd.Sum)
        _is(_synchronize(copy)[0], n**5)  # the last first
        _synchronize(*handles)
        _is(x, n**4)
        _is(memory[:, 1], n)
        x = torch.full((count, 2), float(rank + 1))[:, 0]
        handles = [hvd.broadcast_async_(x, 1), hvd.allreduce_async_(x, op=hvd.Sum)]
        _synchronize(*handles)
        _is(x, 2 * n)


def check_packs() -> None:
    n = hvd.size()
    for count in COUNTS:
        tensors = [torch.ones(count), torch.ones(10)]
        handles = [hvd.allreduce_async_(tensors[1], op=hvd.Sum)]
        handles += [hvd.grouped_allreduce_async_(tensors, op=hvd.Sum) for _ in range(2)]
        handles.append(hvd.allreduce_async_(tensors[1], op=hvd.Sum))
        _synchronize(*reversed(handles))
        _is(tensors[0], n**2)
        _is(tensors[1], n**4)


def check_copies_of_what_is_in_flight() -> None:
    n = hvd.size()
    for count in (20, 100_000):
        memory = torch.ones(count, 2)
        whole = hvd.allreduce_async_(memory, op=hvd.Sum)
        column = memory[:, 0]
        handles = [hvd.allreduce_async(column, op=hvd.Sum), hvd.allgather_async(column)]
        handles.append(hvd.reducescatter_async(column, op=hvd.Sum))
        reduced, gathered, scattered = _synchronize(*handles)
        hvd.synchronize(whole)
        _is(reduced, n**2)
        _is(gathered, n)
        _is(scattered, n**2)
        handle = hvd.allreduce_async_(memory, op=hvd.Sum)
        _is(hvd.allreduce(memory, op=hvd.Sum, compression=hvd.Compression.fp16), n**3)
        hvd.synchronize(handle)


def check_what_cannot_be_written_is_refused_when_it_is_called() -> None:
    """And nothing of it is left for later calls."""
    for name in ("x", None):
        for call in (hvd.allreduce_, hvd.allreduce_async_, partial(hvd.broadcast_, root_rank=0)):
            with pytest.raises(ValueError, match="whose elements share memory"):
                call(torch.ones(1).expand(5), name=name)
        with pytest.raises(ValueError, match="has no values"):
            hvd.allreduce_(torch.ones(3, device="meta"), name=name)
        _is(hvd.allreduce(torch.ones(3), op=hvd.Sum, name=name), hvd.size())


def check_tensors_of_the_inference_mode() -> None:
    for count in COUNTS:
        with torch.inference_mode():
            memory = torch.ones(count, 2)
            handle = hvd.allreduce_async_(memory[:, 0], op=hvd.Sum)
        _is(hvd.allreduce(torch.ones(3), op=hvd.Sum), hvd.size())
        hvd.synchronize(handle)
        _is(memory[:, 0], hvd.size())


@pytest.mark.parametrize(
    "check",
    [
        check_tensors_that_are_not_plain,
        check_packs,
        check_copies_of_what_is_in_flight,
        check_what_cannot_be_written_is_refused_when_it_is_called,
        check_tensors_of_the_inference_mode,
    ],
)
def test_operations_in_flight_on_one_tensor(two: Any, check: Any) -> None:
    two(check)
