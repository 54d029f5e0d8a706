"""Every operation of c10d as an `Operation`: one `Call` on flat memory, and what to copy before and after it.

Tensors that are not contiguous, lists of tensors that do not follow each other in memory, and inputs that overlap
with outputs are copied, here or when the operation is done; all others are used where they lie. What is copied is
first waited for, if an earlier operation needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.work import Received, Work
from slipstream.comm.membership.group import Group
from slipstream.faces.torch_distributed import devices
from slipstream.faces.torch_distributed.devices.memory import TensorMemory
from slipstream.faces.torch_distributed.reduce_ops import premultiplied, reduction
from slipstream.faces.torch_tensors import await_tensor, byte_code, span
from slipstream.staging import process as staging
from slipstream.staging.calls import Call, Ends
from slipstream.staging.device import Device
from slipstream.staging.segments import Transfer

__all__ = [
    "Operation",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "await_earlier",
    "broadcast",
    "elements_per_rank",
    "gather",
    "recv",
    "recv_any",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "share_memory",
    "transfer",
]

Tensors = Sequence[torch.Tensor]
By = tuple[Group, str, float, Ends | None]  # an operation that copies: its group, name, limit and ends


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


# ---- memory


def _is_flat(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _check_dense(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise ValueError(f"slipstream cannot communicate tensors of layout {tensor.layout} in this operation")


def await_earlier(tensor: torch.Tensor, by: By, *, writes: bool) -> None:
    """Waits until no earlier operation needs the tensor, which is now read, or (``writes``) written to later."""
    group, name, limit, ends = by
    if devices.for_tensor(tensor) is None:
        channel = 0 if ends is None else group.channel(*ends)
        await_tensor(group, name, tensor, writes=writes, channel=channel, timeout=limit)
    else:
        staging.settle(TensorMemory(tensor), group, ends, name, writes=writes)


def _readable(tensor: torch.Tensor, by: By) -> torch.Tensor:
    """The values of ``tensor`` as a flat tensor: itself where it can be read as it lies."""
    _check_dense(tensor)
    tensor = tensor.detach()
    if not _is_flat(tensor):
        await_earlier(tensor, by, writes=False)
        tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return tensor.view(-1)


def _writable(tensor: torch.Tensor, by: By) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """A flat tensor to write ``tensor``'s new values to, and what brings them there afterwards."""
    _check_dense(tensor)
    tensor = tensor.detach()
    if _is_flat(tensor):
        return tensor.view(-1), None
    await_earlier(tensor, by, writes=True)
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    return flat, lambda: _copy(tensor, flat)


def _copy(target: torch.Tensor, flat: torch.Tensor) -> None:
    target.copy_(flat.view(target.shape))


def _in_place(tensor: torch.Tensor, by: By) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """As `_writable`, with the values that ``tensor`` has now."""
    flat, finish = _writable(tensor, by)
    if finish is not None:
        flat.view(tensor.shape).copy_(tensor.detach())
    return flat, finish


def _end(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() + tensor.numel() * tensor.element_size()


def _adjacent(tensors: Tensors) -> torch.Tensor | None:
    """One flat tensor over all of them, if they follow each other in one memory."""
    if not all(_is_flat(t) and t.layout is torch.strided for t in tensors):
        return None
    filled = [t.detach() for t in tensors if t.numel()]
    if not filled:
        return None
    storage = filled[0].untyped_storage().data_ptr()
    for one, following in pairwise(filled):
        if _end(one) != following.data_ptr() or following.untyped_storage().data_ptr() != storage:
            return None
    total = sum(t.numel() for t in filled)
    return filled[0].as_strided((total,), (1,), filled[0].storage_offset())


def _readable_list(tensors: Tensors, by: By) -> torch.Tensor:
    together = _adjacent(tensors)
    if together is not None:
        return together
    for tensor in tensors:
        await_earlier(tensor, by, writes=False)
    return torch.cat([_readable(t, by) for t in tensors])


def _writable_list(tensors: Tensors, by: By) -> tuple[torch.Tensor, Callable[[], None] | None]:
    together = _adjacent(tensors)
    if together is not None:
        return together, None
    for tensor in tensors:
        _check_dense(tensor)
        await_earlier(tensor, by, writes=True)
    counts = [t.numel() for t in tensors]
    flat = torch.empty(sum(counts), dtype=tensors[0].dtype, device=tensors[0].device)

    def finish() -> None:
        for tensor, part in zip(tensors, torch.split(flat, counts), strict=True):
            _copy(tensor.detach(), part)

    return flat, finish


def _apart(src: torch.Tensor, dst: torch.Tensor, by: By) -> torch.Tensor:
    """``src``, copied if it shares memory with ``dst``."""
    if src.data_ptr() < _end(dst) and dst.data_ptr() < _end(src):
        await_earlier(src, by, writes=False)
        return src.clone()
    return src


def _scaled(src: torch.Tensor, reduce_op: Any, plain: bool, by: By) -> torch.Tensor:
    """As `premultiplied`."""
    if plain:
        return src
    await_earlier(src, by, writes=False)
    return premultiplied(src, reduce_op)


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


# ---- operations on whole buffers


def share_memory(tensors: Tensors) -> bool:
    """Whether any two of the tensors may have memory in common: their spans overlap."""
    spans = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + span(tensor))
        for tensor in tensors
        if tensor.layout is torch.strided and tensor.numel()
    )
    return any(following[0] < one[1] for one, following in pairwise(spans))


def all_reduce(group: Group, tensor: torch.Tensor, reduce_op: Any, limit: float) -> Operation:
    """``tensor`` = the reduction of every rank's, in place."""
    by = group, "all_reduce", limit, None
    code, op, plain = reduction(reduce_op, tensor.dtype)
    flat, finish = _in_place(tensor, by)
    src = _scaled(flat, reduce_op, plain, by)

    def issue(src: int, dst: int, sent: Sequence[int], _: Sequence[int], keep: Any, sync: bool) -> Work:
        return addresses.all_reduce(group, src, dst, sent[0], code, op, keep=keep, sync=sync, timeout=limit)

    count = [flat.numel()]
    return Operation(
        Call("all_reduce", flat.element_size(), count, count, issue), src, flat, [tensor], finish
    )


def reduce(group: Group, tensor: torch.Tensor, reduce_op: Any, root: int, limit: float) -> Operation:
    """On the root ``tensor`` = the reduction of every rank's; elsewhere it stays as it is."""
    by = group, "reduce", limit, None
    code, op, plain = reduction(reduce_op, tensor.dtype)
    mine = group.rank == root
    flat, finish = _in_place(tensor, by) if mine else (_readable(tensor, by), None)
    dst = flat if mine else torch.empty_like(flat)
    src = _scaled(flat, reduce_op, plain, by)

    def issue(src: int, dst: int, sent: Sequence[int], _: Sequence[int], keep: Any, sync: bool) -> Work:
        return addresses.reduce(group, src, dst, sent[0], code, op, root, keep=keep, sync=sync, timeout=limit)

    count = [flat.numel()]
    call = Call("reduce", flat.element_size(), count, count, issue, writes=mine)
    return Operation(call, src, dst, [tensor], finish)


def broadcast(group: Group, tensor: torch.Tensor, root: int, limit: float) -> Operation:
    """``tensor`` = the root's."""
    by = group, "broadcast", limit, None
    mine = group.rank == root
    flat, finish = (_readable(tensor, by), None) if mine else _writable(tensor, by)
    code, factor = byte_code(flat)

    def issue(src: int, dst: int, sent: Sequence[int], _: Sequence[int], keep: Any, sync: bool) -> Work:
        return addresses.broadcast(
            group, src, dst, sent[0] * factor, code, root, keep=keep, sync=sync, timeout=limit
        )

    count = [flat.numel()]
    call = Call("broadcast", flat.element_size(), count, count, issue, reads=mine, writes=not mine)
    return Operation(call, flat, flat, [tensor], finish)


# ---- operations on one block per rank


def all_gather(group: Group, outputs: Tensors, tensor: torch.Tensor, limit: float) -> Operation:
    """``outputs`` = every rank's ``tensor``, which may differ in size; a single output takes all blocks in a row."""
    by = group, "all_gather", limit, None
    src = _readable(tensor, by)
    _check_same(outputs, src, "output")
    if len(outputs) == 1 and (group.size > 1 or outputs[0].numel() == src.numel()):
        if outputs[0].numel() != src.numel() * group.size:
            raise ValueError(
                f"output tensor size must be equal to world_size times input tensor size: "
                f"{outputs[0].numel()} is not {group.size} x {src.numel()} elements"
            )
        counts = [src.numel()] * group.size
        dst, finish = _writable(outputs[0], by)
    else:
        _check_count(outputs, group.size, "the list of outputs")
        counts = [t.numel() for t in outputs]
        if counts[group.rank] != src.numel():
            raise ValueError(
                f"output {group.rank} has {counts[group.rank]} elements, this rank's input {src.numel()}"
            )
        dst, finish = _writable_list(outputs, by)
    code, factor = byte_code(src)
    offset = sum(counts[: group.rank]) * src.element_size()
    if src.data_ptr() != dst.data_ptr() + offset:  # an input that is already in its place is left there
        src = _apart(src, dst, by)

    def issue(src: int, dst: int, _: Sequence[int], received: Sequence[int], keep: Any, sync: bool) -> Work:
        return addresses.all_gather(
            group, src, dst, _times(received, factor), code, keep=keep, sync=sync, timeout=limit
        )

    call = Call("all_gather", src.element_size(), [src.numel()], counts, issue)
    return Operation(call, src, dst, list(outputs), finish)


def reduce_scatter(
    group: Group, output: torch.Tensor, inputs: Tensors, reduce_op: Any, limit: float
) -> Operation:
    """``output`` = this rank's block of the reduction of ``inputs``: one per rank, or all blocks in one tensor."""
    by = group, "reduce_scatter", limit, None
    _check_same(inputs, output, "input")
    code, op, plain = reduction(reduce_op, output.dtype)
    if len(inputs) == 1 and (group.size > 1 or inputs[0].numel() == output.numel()):
        if inputs[0].numel() != output.numel() * group.size:
            raise ValueError(
                f"input tensor must be the same size as output size times world size: "
                f"{inputs[0].numel()} is not {group.size} x {output.numel()} elements"
            )
        counts = [output.numel()] * group.size
        src = _readable(inputs[0], by)
    else:
        _check_count(inputs, group.size, "the list of inputs")
        counts = [t.numel() for t in inputs]
        if counts[group.rank] != output.numel():
            raise ValueError(
                f"input {group.rank} has {counts[group.rank]} elements, this rank's output {output.numel()}"
            )
        src = _readable_list(inputs, by)
    dst, finish = _writable(output, by)
    src = _apart(_scaled(src, reduce_op, plain, by), dst, by)

    def issue(src: int, dst: int, sent: Sequence[int], _: Sequence[int], keep: Any, sync: bool) -> Work:
        return addresses.reduce_scatter(
            group, src, dst, list(sent), code, op, keep=keep, sync=sync, timeout=limit
        )

    call = Call("reduce_scatter", src.element_size(), counts, [dst.numel()], issue)
    return Operation(call, src, dst, [output], finish)


def all_to_all(
    group: Group,
    outputs: Tensors,
    inputs: Tensors,
    received: Sequence[int],
    sent: Sequence[int],
    limit: float,
    name: str = "",
) -> Operation:
    """Block p of ``inputs`` goes to rank p, which has it in its ``outputs``; counts are elements per rank."""
    by = group, name or "all_to_all", limit, None
    _check_same(outputs, inputs[0], "output")
    _check_same(inputs, inputs[0], "input")
    src = _readable_list(inputs, by) if len(inputs) != 1 else _readable(inputs[0], by)
    dst, finish = _writable_list(outputs, by) if len(outputs) != 1 else _writable(outputs[0], by)
    if sent[group.rank] != received[group.rank]:
        raise ValueError(
            f"rank {group.rank} sends itself {sent[group.rank]} elements, but expects {received[group.rank]}"
        )
    src = _apart(src, dst, by)
    code, factor = byte_code(src)

    def issue(
        src: int, dst: int, sent: Sequence[int], received: Sequence[int], keep: Any, sync: bool
    ) -> Work:
        counts = _times(sent, factor), _times(received, factor)
        return addresses.all_to_all(
            group, src, dst, *counts, code, name=name, keep=keep, sync=sync, timeout=limit
        )

    call = Call(name or "all_to_all", src.element_size(), list(sent), list(received), issue, uneven=True)
    return Operation(call, src, dst, list(outputs), finish)


def gather(group: Group, outputs: Tensors, tensor: torch.Tensor, root: int, limit: float) -> Operation:
    """On the root ``outputs`` = every rank's ``tensor``, which may differ in size."""
    sent, received = [0] * group.size, [0] * group.size
    sent[root] = tensor.numel()
    if group.rank == root:
        _check_count(outputs, group.size, "the list of outputs")
        _check_same(outputs, tensor, "output")
        received = [t.numel() for t in outputs]
    else:
        outputs = [torch.empty(0, dtype=tensor.dtype, device=tensor.device)]
    return all_to_all(group, outputs, [tensor], received, sent, limit, f"gather to rank {root}")


def scatter(group: Group, output: torch.Tensor, inputs: Tensors, root: int, limit: float) -> Operation:
    """``output`` = this rank's of the root's ``inputs``, which may differ in size."""
    sent, received = [0] * group.size, [0] * group.size
    received[root] = output.numel()
    if group.rank == root:
        _check_count(inputs, group.size, "the list of inputs")
        _check_same(inputs, output, "input")
        sent = [t.numel() for t in inputs]
    else:
        inputs = [torch.empty(0, dtype=output.dtype, device=output.device)]
    return all_to_all(group, [output], inputs, received, sent, limit, f"scatter from rank {root}")


# ---- between two ranks


def send(group: Group, tensor: torch.Tensor, peer: int, tag: int, limit: float) -> Operation:
    """Sends ``tensor`` to ``peer``, which receives as many elements with this tag."""
    ends = (group.rank, peer, tag)
    by = group, "send", limit, ends
    src = _readable(tensor, by)
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
    by = group, "recv", limit, ends
    dst, finish = _writable(tensor, by)
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
    by = group, "recv", limit, ends
    dst, finish = _writable(tensor, by)
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
