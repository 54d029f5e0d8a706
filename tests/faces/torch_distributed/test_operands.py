"""Tensors as flat memory, without a job: which are used where they lie, and what is waited for before a copy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from slipstream.faces.torch_distributed.operands import Operands, share_memory


class Recorded(Operands):
    """Writes down what it would wait for, and whether that is to be written to."""

    def __init__(self) -> None:
        group: Any = None
        super().__init__(group, "all_reduce", 30.0)
        self.awaited: list[tuple[int, bool]] = []

    def await_earlier(self, tensor: torch.Tensor, *, writes: bool) -> None:
        self.awaited.append((tensor.data_ptr(), writes))


def counted(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)


def test_what_is_contiguous_is_used_where_it_lies() -> None:
    operands, tensor = Recorded(), counted(3, 4)
    assert operands.readable(tensor).data_ptr() == tensor.data_ptr()
    for flat, finish in (operands.writable(tensor), operands.in_place(tensor)):
        assert (flat.data_ptr(), flat.shape, finish) == (tensor.data_ptr(), (12,), None)
    assert operands.awaited == []


def test_a_copy_waits_for_earlier_operations_and_is_brought_back() -> None:
    operands, tensor = Recorded(), counted(3, 4).t()
    assert operands.readable(tensor).tolist() == tensor.flatten().tolist()
    flat, finish = operands.in_place(tensor)
    assert flat.tolist() == tensor.flatten().tolist()
    assert operands.awaited == [(tensor.data_ptr(), False), (tensor.data_ptr(), True)]
    flat += 1
    assert tensor[0, 0] == 0
    assert finish is not None
    finish()
    assert tensor.t().equal(counted(3, 4) + 1)


def test_conjugates_are_copied_as_their_values() -> None:
    tensor = torch.tensor([1 + 2j]).conj()
    assert Recorded().readable(tensor).tolist() == [1 - 2j]


def test_tensors_that_follow_each_other_are_one() -> None:
    operands, whole = Recorded(), counted(10)
    parts = [whole[:3], whole[3:3], whole[3:10]]
    assert operands.readable_list(parts).data_ptr() == whole.data_ptr()
    flat, finish = operands.writable_list(parts)
    assert (flat.data_ptr(), finish) == (whole.data_ptr(), None)
    assert operands.awaited == []


@pytest.mark.parametrize("order", [(1, 0), (0, 2)])
def test_other_lists_are_copied(order: tuple[int, int]) -> None:
    operands, thirds = Recorded(), counted(6).split(2)
    given = [thirds[i] for i in order]
    assert operands.readable_list(given).tolist() == [x for one in given for x in one.tolist()]
    flat, finish = operands.writable_list(given)
    assert operands.awaited == [(one.data_ptr(), writes) for writes in (False, True) for one in given]
    flat.copy_(torch.tensor([10.0, 11.0, 12.0, 13.0]))
    assert finish is not None
    finish()
    assert [one.tolist() for one in given] == [[10, 11], [12, 13]]


def test_an_input_is_copied_if_it_shares_memory_with_the_output() -> None:
    operands, whole = Recorded(), counted(10)
    assert operands.apart(whole[:5], whole[5:]).data_ptr() == whole.data_ptr()
    assert operands.awaited == []
    copy = operands.apart(whole[:6], whole[5:])
    assert copy.data_ptr() != whole.data_ptr()
    assert copy.equal(whole[:6])
    assert operands.awaited == [(whole.data_ptr(), False)]


def test_tensors_share_memory_if_their_spans_overlap() -> None:
    whole = counted(10)
    assert share_memory([whole[:6], whole[5:]])
    assert share_memory([whole[::2], whole[1::2]])  # between each other's elements
    assert not share_memory([whole[:5], whole[5:], whole[3:3]])


def test_only_dense_tensors_have_flat_memory() -> None:
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (2,))
    for use in (Recorded().readable, Recorded().writable, Recorded().in_place):
        with pytest.raises(ValueError, match=r"layout torch.sparse_coo in this operation"):
            use(sparse)
