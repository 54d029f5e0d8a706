"""Every operation of c10d as an `Operation`: one `Call` on flat memory, and what to copy before and after it.

`operands.Operands` makes the tensors flat memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.work import Received, Work
from slipstream.comm.membership.group import Group
from slipstream.faces.torch_distributed.devices.memory import TensorMemory
from slipstream.faces.torch_distributed.operands import Operands
from slipstream.faces.torch_distributed.reduce_ops import reduction
from slipstream.faces.torch_distributed.wire import EXACT, Wire
from slipstream.faces.torch_tensors import byte_code
from slipstream.staging.calls import Call
from slipstream.staging.device import Device
from slipstream.staging.transfers import Transfer

__all__ = [
    "Operation",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "elements_per_rank",
    "gather",
    "recv",
    "recv_any",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "transfer",
]

Tensors = Sequence[torch.Tensor]


@dataclass
class Operation:
    """An operation ready to start.

    ``src`` and ``dst``: flat contiguous tensors on one device, the same for an operation in place, None where the
    call has no use for one. ``tensors``: what the Work gives as its result. ``finish``: brings ``dst`` to where
    the caller wants it (``tensors``).
    """

    call: Call
    src: torch.Tensor | None
    dst: torch.Tensor | None
    tensors: list[torch.Tensor]
    finish: Callable[[], None] | None = None


def transfer(device: Device, operation: Operation, group: Group) -> Transfer:
    """What staging takes: an operation on tensors of ``device``, which issues what it does on ``group``."""
    src, dst = operation.src, operation.dst
    return Transfer(
        device,
        group,
        operation.call,
        None if src is None else TensorMemory(src),
        None if dst is None else TensorMemory(dst),
        operation.finish,
        [TensorMemory(tensor) for tensor in operation.tensors],
    )


# ---- checks


def _check_same(tensors: Tensors, like: torch.Tensor, what: str) -> None:
    for i, tensor in enumerate(tensors):
        if tensor.dtype != like.dtype:
            raise ValueError(f"{what} {i} is of {tensor.dtype}, but {like.dtype} is communicated")
        if tensor.device.type != like.device.type:
            raise ValueError(f"{what} {i} is on {tensor.device}, but the operation on {like.device}")


def _check_count(tensors: Tensors, size: int, what: str) -> None:
    if len(tensors) != size:
        raise ValueError(f"{what} must have one tensor per rank: {size}, not {len(tensors)}")


def elements_per_rank(tensor: torch.Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Elements for each of ``size`` ranks of a tensor that is cut along dim 0: by ``splits`` (rows), or equally."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise ValueError(
                f"Tensor's dim 0 does not divide equally across group size: {rows} rows, {size} ranks"
            )
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise ValueError(f"Split sizes {list(splits)} do not match total dim 0 size {rows} of {size} ranks")
    width = tensor.numel() // rows if rows else 0
    return [n * width for n in splits]


def _times(counts: Sequence[int], factor: int) -> list[int]:
    return [n * factor for n in counts] if factor != 1 else list(counts)


def _own(factor: float) -> dict[str, Any]:
    """The options of a reduction for a prescale that is this rank's own: PREMUL_SUM takes one of each rank."""
    return {} if factor == 1.0 else {"prescale": factor, "one_scale": False}


# ---- operations on whole buffers


def all_reduce(
    group: Group, tensor: torch.Tensor, reduce_op: Any, limit: float, wire: Wire = EXACT
) -> Operation:
    """``tensor`` = the reduction of every rank's, in place."""
    operands = Operands(group, "all_reduce", limit)
    code, op, plain = reduction(reduce_op, tensor.dtype)
    flat, finish = operands.in_place(tensor)
    src, factor = operands.scaled(flat, reduce_op, plain)
    options = {**_own(factor), "timeout": limit, "wire": wire.of_sum(flat.numel(), flat.dtype, op)}
    count = [flat.numel()]

    def issue(src: int, dst: int, sent: Sequence[int], _: Sequence[int], keep: Any, sync: bool) -> Work:
        return addresses.all_reduce(group, src, dst, sent[0], code, op, keep=keep, sync=sync, **options)

    return Operation(
        Call("all_reduce", flat.element_size(), count, count, issue), src, flat, [tensor], finish
    )


def reduce(group: Group, tensor: torch.Tensor, reduce_op: Any, root: int, limit: float) -> Operation:
    """On the root ``tensor`` = the reduction of every rank's; elsewhere it stays as it is."""
    operands = Operands(group, "reduce", limit)
    code, op, plain = reduction(reduce_op, tensor.dtype)
    mine = group.rank == root
    flat, finish = operands.in_place(tensor) if mine else (operands.readable(tensor), None)
    dst = flat if mine else torch.empty_like(flat)
    src, factor = operands.scaled(flat, reduce_op, plain)
    options = {**_own(factor), "timeout": limit}

    def issue(src: int, dst: int, sent: Sequence[int], _: Sequence[int], keep: Any, sync: bool) -> Work:
        return addresses.reduce(group, src, dst, sent[0], code, op, root, keep=keep, sync=sync, **options)

    count = [flat.numel()]
    call = Call("reduce", flat.element_size(), count, count, issue, writes=mine)
    return Operation(call, src, dst, [tensor], finish)


def broadcast(group: Group, tensor: torch.Tensor, root: int, limit: float) -> Operation:
    """``tensor`` = the root's."""
    operands = Operands(group, "broadcast", limit)
    mine = group.rank == root
    flat, finish = (operands.readable(tensor), None) if mine else operands.writable(tensor)
    code, factor = byte_code(flat)

    def issue(src: int, dst: int, sent: Sequence[int], _: Sequence[int], keep: Any, sync: bool) -> Work:
        return addresses.broadcast(
            group, src, dst, sent[0] * factor, code, root, keep=keep, sync=sync, timeout=limit
        )

    count = [flat.numel()]
    call = Call("broadcast", flat.element_size(), count, count, issue, reads=mine, writes=not mine)
    return Operation(call, flat, flat, [tensor], finish)


# ---- operations on one block per rank


def all_gather(
    group: Group, outputs: Tensors, tensor: torch.Tensor, limit: float, wire: Wire = EXACT
) -> Operation:
    """``outputs`` = every rank's ``tensor``, which may differ in size; a single output takes all blocks in a row."""
    operands = Operands(group, "all_gather", limit)
    src = operands.readable(tensor)
    _check_same(outputs, src, "output")
    if len(outputs) == 1 and (group.size > 1 or outputs[0].numel() == src.numel()):
        if outputs[0].numel() != src.numel() * group.size:
            raise ValueError(
                f"output tensor size must be equal to world_size times input tensor size: "
                f"{outputs[0].numel()} is not {group.size} x {src.numel()} elements"
            )
        counts = [src.numel()] * group.size
        dst, finish = operands.writable(outputs[0])
    else:
        _check_count(outputs, group.size, "the list of outputs")
        counts = [t.numel() for t in outputs]
        if counts[group.rank] != src.numel():
            raise ValueError(
                f"output {group.rank} has {counts[group.rank]} elements, this rank's input {src.numel()}"
            )
        dst, finish = operands.writable_list(outputs)
    code, factor = byte_code(src)
    wired = wire.of_gathered(sum(counts), src.dtype)
    offset = sum(counts[: group.rank]) * src.element_size()
    if src.data_ptr() != dst.data_ptr() + offset:  # an input that is already in its place is left there
        src = operands.apart(src, dst)

    def issue(src: int, dst: int, _: Sequence[int], received: Sequence[int], keep: Any, sync: bool) -> Work:
        return addresses.all_gather(
            group, src, dst, _times(received, factor), code, wire=wired, keep=keep, sync=sync, timeout=limit
        )

    call = Call("all_gather", src.element_size(), [src.numel()], counts, issue)
    return Operation(call, src, dst, list(outputs), finish)


def reduce_scatter(
    group: Group,
    output: torch.Tensor,
    inputs: Tensors,
    reduce_op: Any,
    limit: float,
    wire: Wire = EXACT,
) -> Operation:
    """``output`` = this rank's block of the reduction of ``inputs``: one per rank, or all blocks in one tensor."""
    operands = Operands(group, "reduce_scatter", limit)
    _check_same(inputs, output, "input")
    code, op, plain = reduction(reduce_op, output.dtype)
    if len(inputs) == 1 and (group.size > 1 or inputs[0].numel() == output.numel()):
        if inputs[0].numel() != output.numel() * group.size:
            raise ValueError(
                f"input tensor must be the same size as output size times world size: "
                f"{inputs[0].numel()} is not {group.size} x {output.numel()} elements"
            )
        counts = [output.numel()] * group.size
        src = operands.readable(inputs[0])
    else:
        _check_count(inputs, group.size, "the list of inputs")
        counts = [t.numel() for t in inputs]
        if counts[group.rank] != output.numel():
            raise ValueError(
                f"input {group.rank} has {counts[group.rank]} elements, this rank's output {output.numel()}"
            )
        src = operands.readable_list(inputs)
    dst, finish = operands.writable(output)
    src, factor = operands.scaled(src, reduce_op, plain)
    options = {**_own(factor), "timeout": limit, "wire": wire.of_sum(src.numel(), src.dtype, op)}
    src = operands.apart(src, dst)

    def issue(src: int, dst: int, sent: Sequence[int], _: Sequence[int], keep: Any, sync: bool) -> Work:
        return addresses.reduce_scatter(
            group, src, dst, list(sent), code, op, keep=keep, sync=sync, **options
        )

    call = Call("reduce_scatter", src.element_size(), counts, [counts[group.rank]], issue)
    return Operation(call, src, dst, [output], finish)


def all_to_all(
    group: Group,
    outputs: Tensors,
    inputs: Tensors,
    limit: float,
    *,
    sent: Sequence[int],
    received: Sequence[int],
    name: str = "",
    wire: Wire = EXACT,
) -> Operation:
    """Block p of ``inputs`` goes to rank p, which has it in its ``outputs``; counts are elements per rank."""
    operands = Operands(group, name or "all_to_all", limit)
    _check_same(outputs, inputs[0], "output")
    _check_same(inputs, inputs[0], "input")
    src = operands.readable_list(inputs) if len(inputs) != 1 else operands.readable(inputs[0])
    dst, finish = operands.writable_list(outputs) if len(outputs) != 1 else operands.writable(outputs[0])
    if sent[group.rank] != received[group.rank]:
        raise ValueError(
            f"rank {group.rank} sends itself {sent[group.rank]} elements, but expects {received[group.rank]}"
        )
    src = operands.apart(src, dst)
    code, factor = byte_code(src)
    options: dict[str, Any] = {"name": name, "wire": wire.of_exchanged(src.dtype), "timeout": limit}

    def issue(
        src: int, dst: int, sent: Sequence[int], received: Sequence[int], keep: Any, sync: bool
    ) -> Work:
        counts = _times(sent, factor), _times(received, factor)
        return addresses.all_to_all(group, src, dst, *counts, code, keep=keep, sync=sync, **options)

    call = Call(name or "all_to_all", src.element_size(), list(sent), list(received), issue, uneven=True)
    return Operation(call, src, dst, list(outputs), finish)


def _of_root(
    group: Group, root: int, tensors: Tensors, like: torch.Tensor, what: str
) -> tuple[Tensors, list[int]]:
    """On the root the list that it gives, with the elements for each rank; elsewhere an empty tensor and zeros."""
    if group.rank != root:
        return [torch.empty(0, dtype=like.dtype, device=like.device)], [0] * group.size
    _check_count(tensors, group.size, f"the list of {what}s")
    _check_same(tensors, like, what)
    return tensors, [t.numel() for t in tensors]


def gather(group: Group, outputs: Tensors, tensor: torch.Tensor, root: int, limit: float) -> Operation:
    """On the root ``outputs`` = every rank's ``tensor``, which may differ in size."""
    outputs, received = _of_root(group, root, outputs, tensor, "output")
    sent = [0] * group.size
    sent[root] = tensor.numel()
    name = f"gather to rank {root}"
    return all_to_all(group, outputs, [tensor], limit, sent=sent, received=received, name=name)


def scatter(group: Group, output: torch.Tensor, inputs: Tensors, root: int, limit: float) -> Operation:
    """``output`` = this rank's of the root's ``inputs``, which may differ in size."""
    inputs, sent = _of_root(group, root, inputs, output, "input")
    received = [0] * group.size
    received[root] = output.numel()
    name = f"scatter from rank {root}"
    return all_to_all(group, [output], inputs, limit, sent=sent, received=received, name=name)


# ---- between two ranks


def send(group: Group, tensor: torch.Tensor, peer: int, tag: int, limit: float) -> Operation:
    """Sends ``tensor`` to ``peer``, which receives as many elements with this tag."""
    ends = (group.rank, peer, tag)
    operands = Operands(group, "send", limit, ends)
    src = operands.readable(tensor)
    code, factor = byte_code(src)

    def issue(src: int, _dst: int, sent: Sequence[int], _: Sequence[int], keep: Any, sync: bool) -> Work:
        return addresses.send(
            group, src, sent[0] * factor, code, peer, tag, keep=keep, sync=sync, timeout=limit
        )

    call = Call("send", src.element_size(), [src.numel()], [], issue, writes=False, ends=ends)
    return Operation(call, src, None, [tensor])


def recv(group: Group, tensor: torch.Tensor, peer: int, tag: int, limit: float) -> Operation:
    """``tensor`` = what ``peer`` sends with this tag."""
    ends = (peer, group.rank, tag)
    operands = Operands(group, "recv", limit, ends)
    dst, finish = operands.writable(tensor)
    code, factor = byte_code(dst)

    def issue(_src: int, dst: int, _: Sequence[int], received: Sequence[int], keep: Any, sync: bool) -> Work:
        return addresses.recv(
            group, dst, received[0] * factor, code, peer, tag, keep=keep, sync=sync, timeout=limit
        )

    call = Call("recv", dst.element_size(), [], [dst.numel()], issue, reads=False, ends=ends)
    return Operation(call, None, dst, [tensor], finish)


def recv_any(group: Group, tensor: torch.Tensor, tag: int, limit: float) -> Operation:
    """``tensor`` = what the first rank sends with this tag; the Work tells which."""
    ends = (group.rank, group.rank, tag)
    operands = Operands(group, "recv", limit, ends)
    dst, finish = operands.writable(tensor)
    code, factor = byte_code(dst)

    first: list[Received] = []

    def issue(_src: int, dst: int, _: Sequence[int], received: Sequence[int], keep: Any, sync: bool) -> Work:
        if first:  # a later part comes from where the first came from
            count, source = received[0] * factor, first[0].source()
            return addresses.recv(group, dst, count, code, source, tag, keep=keep, sync=sync, timeout=limit)
        first.append(
            addresses.recv_any(group, dst, received[0] * factor, code, tag, keep=keep, timeout=limit)
        )
        return first[0]

    call = Call("recv", dst.element_size(), [], [dst.numel()], issue, reads=False, ends=ends, serial=True)
    return Operation(call, None, dst, [tensor], finish)
