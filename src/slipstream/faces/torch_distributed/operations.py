"""Every operation of c10d as a `Task`: one `Call` on flat memory, and what to copy before and after it.

Tensors that are not contiguous, lists of tensors that do not follow each other in memory, and inputs that overlap
with outputs are copied, here or when the operation is done; all others are used where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from slipstream.comm import raw
from slipstream.comm.group import Group
from slipstream.comm.work import Received, Work
from slipstream.faces.torch_distributed.calls import Call
from slipstream.faces.torch_distributed.reductions import premultiplied, reduction
from slipstream.faces.torch_tensors import byte_code

__all__ = [
    "Task",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather",
    "recv",
    "recv_any",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "share_memory",
]

Tensors = Sequence[torch.Tensor]


@dataclass
class Task:
    """An operation ready to start.

    ``src`` and ``dst``: flat contiguous tensors on one device, the same for an operation in place, None where the
    call has no use for one. ``tensors``: what the Work gives as its result. ``finish``: brings ``dst`` to where
    the caller wants it. ``channel``: operations of a group with equal channels run in the order of their calls
    (collectives have one, sends and receives one for each peer and tag). ``uneven``: ranks may see blocks of
    different sizes. ``serial``: of the parts of a staged call, each may be issued only when the one before is over.
    """

    call: Call
    src: torch.Tensor | None
    dst: torch.Tensor | None
    tensors: list[torch.Tensor]
    finish: Callable[[], None] | None = None
    channel: object = None
    uneven: bool = False
    serial: bool = False


# ---- memory


def _is_flat(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _check_dense(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise ValueError(f"slipstream cannot communicate tensors of layout {tensor.layout} in this operation")


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """The values of ``tensor`` as a flat tensor: itself where it can be read as it lies."""
    _check_dense(tensor)
    tensor = tensor.detach()
    if not _is_flat(tensor):
        tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return tensor.view(-1)


def _writable(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """A flat tensor to write ``tensor``'s new values to, and what brings them there afterwards."""
    _check_dense(tensor)
    tensor = tensor.detach()
    if _is_flat(tensor):
        return tensor.view(-1), None
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    return flat, lambda: _copy(tensor, flat)


def _copy(target: torch.Tensor, flat: torch.Tensor) -> None:
    target.copy_(flat.view(target.shape))


def _in_place(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """As `_writable`, with the values that ``tensor`` has now."""
    flat, finish = _writable(tensor)
    if finish is not None:
        flat.view(tensor.shape).copy_(tensor.detach())
    return flat, finish


def _end(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() + tensor.numel() * tensor.element_size()


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the first element of a tensor that is not empty to the end of the last."""
    steps = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


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


def _readable_list(tensors: Tensors) -> torch.Tensor:
    together = _adjacent(tensors)
    return torch.cat([_readable(t) for t in tensors]) if together is None else together


def _writable_list(tensors: Tensors) -> tuple[torch.Tensor, Callable[[], None] | None]:
    together = _adjacent(tensors)
    if together is not None:
        return together, None
    for tensor in tensors:
        _check_dense(tensor)
    counts = [t.numel() for t in tensors]
    flat = torch.empty(sum(counts), dtype=tensors[0].dtype, device=tensors[0].device)

    def finish() -> None:
        for tensor, part in zip(tensors, torch.split(flat, counts), strict=True):
            _copy(tensor.detach(), part)

    return flat, finish


def _apart(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    """``src``, copied if it shares memory with ``dst``."""
    if src.data_ptr() < _end(dst) and dst.data_ptr() < _end(src):
        return src.clone()
    return src


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


def _times(counts: Sequence[int], factor: int) -> list[int]:
    return [n * factor for n in counts] if factor != 1 else list(counts)


# ---- operations on whole buffers


def share_memory(tensors: Tensors) -> bool:
    """Whether any two of the tensors may have memory in common: their spans overlap."""
    spans = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + _span(tensor))
        for tensor in tensors
        if tensor.layout is torch.strided and tensor.numel()
    )
    return any(following[0] < one[1] for one, following in pairwise(spans))


def all_reduce(group: Group, tensor: torch.Tensor, reduce_op: Any, limit: float) -> Task:
    """``tensor`` = the reduction of every rank's, in place."""
    code, op, _ = reduction(reduce_op, tensor.dtype)
    flat, finish = _in_place(tensor)
    src = premultiplied(flat, reduce_op)

    def issue(src: int, dst: int, sent: Sequence[int], _: Sequence[int], keep: Any, sync: bool) -> Work:
        return raw.all_reduce(group, src, dst, sent[0], code, op, keep=keep, sync=sync, timeout=limit)

    count = [flat.numel()]
    return Task(Call("all_reduce", flat.element_size(), count, count, issue), src, flat, [tensor], finish)


def reduce(group: Group, tensor: torch.Tensor, reduce_op: Any, root: int, limit: float) -> Task:
    """On the root ``tensor`` = the reduction of every rank's; elsewhere it stays as it is."""
    code, op, _ = reduction(reduce_op, tensor.dtype)
    mine = group.rank == root
    flat, finish = _in_place(tensor) if mine else (_readable(tensor), None)
    dst = flat if mine else torch.empty_like(flat)
    src = premultiplied(flat, reduce_op)

    def issue(src: int, dst: int, sent: Sequence[int], _: Sequence[int], keep: Any, sync: bool) -> Work:
        return raw.reduce(group, src, dst, sent[0], code, op, root, keep=keep, sync=sync, timeout=limit)

    count = [flat.numel()]
    call = Call("reduce", flat.element_size(), count, count, issue, writes=mine)
    return Task(call, src, dst, [tensor], finish)


def broadcast(group: Group, tensor: torch.Tensor, root: int, limit: float) -> Task:
    """``tensor`` = the root's."""
    mine = group.rank == root
    flat, finish = (_readable(tensor), None) if mine else _writable(tensor)
    code, factor = byte_code(flat)

    def issue(src: int, dst: int, sent: Sequence[int], _: Sequence[int], keep: Any, sync: bool) -> Work:
        return raw.broadcast(
            group, src, dst, sent[0] * factor, code, root, keep=keep, sync=sync, timeout=limit
        )

    count = [flat.numel()]
    call = Call("broadcast", flat.element_size(), count, count, issue, reads=mine, writes=not mine)
    return Task(call, flat, flat, [tensor], finish)


# ---- operations on one block per rank


def all_gather(group: Group, outputs: Tensors, tensor: torch.Tensor, limit: float) -> Task:
    """``outputs`` = every rank's ``tensor``, which may differ in size; a single output takes all blocks in a row."""
    src = _readable(tensor)
    _check_same(outputs, src, "output")
    if len(outputs) == 1 and (group.size > 1 or outputs[0].numel() == src.numel()):
        if outputs[0].numel() != src.numel() * group.size:
            raise ValueError(
                f"output tensor size must be equal to world_size times input tensor size: "
                f"{outputs[0].numel()} is not {group.size} x {src.numel()} elements"
            )
        counts = [src.numel()] * group.size
        dst, finish = _writable(outputs[0])
    else:
        _check_count(outputs, group.size, "the list of outputs")
        counts = [t.numel() for t in outputs]
        if counts[group.rank] != src.numel():
            raise ValueError(
                f"output {group.rank} has {counts[group.rank]} elements, this rank's input {src.numel()}"
            )
        dst, finish = _writable_list(outputs)
    code, factor = byte_code(src)
    offset = sum(counts[: group.rank]) * src.element_size()
    if src.data_ptr() != dst.data_ptr() + offset:  # an input that is already in its place is left there
        src = _apart(src, dst)

    def issue(src: int, dst: int, _: Sequence[int], received: Sequence[int], keep: Any, sync: bool) -> Work:
        return raw.all_gather(
            group, src, dst, _times(received, factor), code, keep=keep, sync=sync, timeout=limit
        )

    call = Call("all_gather", src.element_size(), [src.numel()], counts, issue)
    return Task(call, src, dst, list(outputs), finish)


def reduce_scatter(group: Group, output: torch.Tensor, inputs: Tensors, reduce_op: Any, limit: float) -> Task:
    """``output`` = this rank's block of the reduction of ``inputs``: one per rank, or all blocks in one tensor."""
    _check_same(inputs, output, "input")
    code, op, _ = reduction(reduce_op, output.dtype)
    if len(inputs) == 1 and (group.size > 1 or inputs[0].numel() == output.numel()):
        if inputs[0].numel() != output.numel() * group.size:
            raise ValueError(
                f"input tensor must be the same size as output size times world size: "
                f"{inputs[0].numel()} is not {group.size} x {output.numel()} elements"
            )
        counts = [output.numel()] * group.size
        src = _readable(inputs[0])
    else:
        _check_count(inputs, group.size, "the list of inputs")
        counts = [t.numel() for t in inputs]
        if counts[group.rank] != output.numel():
            raise ValueError(
                f"input {group.rank} has {counts[group.rank]} elements, this rank's output {output.numel()}"
            )
        src = _readable_list(inputs)
    dst, finish = _writable(output)
    src = _apart(premultiplied(src, reduce_op), dst)

    def issue(src: int, dst: int, sent: Sequence[int], _: Sequence[int], keep: Any, sync: bool) -> Work:
        return raw.reduce_scatter(group, src, dst, list(sent), code, op, keep=keep, sync=sync, timeout=limit)

    call = Call("reduce_scatter", src.element_size(), counts, [dst.numel()], issue)
    return Task(call, src, dst, [output], finish)


def all_to_all(
    group: Group,
    outputs: Tensors,
    inputs: Tensors,
    received: Sequence[int],
    sent: Sequence[int],
    limit: float,
    name: str = "",
) -> Task:
    """Block p of ``inputs`` goes to rank p, which has it in its ``outputs``; counts are elements per rank."""
    _check_same(outputs, inputs[0], "output")
    _check_same(inputs, inputs[0], "input")
    src = _readable_list(inputs) if len(inputs) != 1 else _readable(inputs[0])
    dst, finish = _writable_list(outputs) if len(outputs) != 1 else _writable(outputs[0])
    if sent[group.rank] != received[group.rank]:
        raise ValueError(
            f"rank {group.rank} sends itself {sent[group.rank]} elements, but expects {received[group.rank]}"
        )
    src = _apart(src, dst)
    code, factor = byte_code(src)

    def issue(
        src: int, dst: int, sent: Sequence[int], received: Sequence[int], keep: Any, sync: bool
    ) -> Work:
        counts = _times(sent, factor), _times(received, factor)
        return raw.all_to_all(group, src, dst, *counts, code, name=name, keep=keep, sync=sync, timeout=limit)

    call = Call(name or "all_to_all", src.element_size(), list(sent), list(received), issue)
    return Task(call, src, dst, list(outputs), finish, uneven=True)


def gather(group: Group, outputs: Tensors, tensor: torch.Tensor, root: int, limit: float) -> Task:
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


def scatter(group: Group, output: torch.Tensor, inputs: Tensors, root: int, limit: float) -> Task:
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


def send(group: Group, tensor: torch.Tensor, peer: int, tag: int, limit: float) -> Task:
    """Sends ``tensor`` to ``peer``, which receives as many elements with this tag."""
    src = _readable(tensor)
    code, factor = byte_code(src)

    def issue(src: int, _dst: int, sent: Sequence[int], _: Sequence[int], keep: Any, sync: bool) -> Work:
        return raw.send(group, src, sent[0] * factor, code, peer, tag, keep=keep, sync=sync, timeout=limit)

    call = Call("send", src.element_size(), [src.numel()], [], issue, writes=False)
    return Task(call, src, None, [tensor], channel=("send", peer, tag))


def recv(group: Group, tensor: torch.Tensor, peer: int, tag: int, limit: float) -> Task:
    """``tensor`` = what ``peer`` sends with this tag."""
    dst, finish = _writable(tensor)
    code, factor = byte_code(dst)

    def issue(_src: int, dst: int, _: Sequence[int], received: Sequence[int], keep: Any, sync: bool) -> Work:
        return raw.recv(
            group, dst, received[0] * factor, code, peer, tag, keep=keep, sync=sync, timeout=limit
        )

    call = Call("recv", dst.element_size(), [], [dst.numel()], issue, reads=False)
    return Task(call, None, dst, [tensor], finish, channel=("recv", peer, tag))


def recv_any(group: Group, tensor: torch.Tensor, tag: int, limit: float) -> Task:
    """``tensor`` = what the first rank sends with this tag; the Work tells which."""
    dst, finish = _writable(tensor)
    code, factor = byte_code(dst)

    first: list[Received] = []

    def issue(_src: int, dst: int, _: Sequence[int], received: Sequence[int], keep: Any, sync: bool) -> Work:
        if first:  # a later part comes from where the first came from
            count, source = received[0] * factor, first[0].source()
            return raw.recv(group, dst, count, code, source, tag, keep=keep, sync=sync, timeout=limit)
        first.append(raw.recv_any(group, dst, received[0] * factor, code, tag, keep=keep, timeout=limit))
        return first[0]

    call = Call("recv", dst.element_size(), [], [dst.numel()], issue, reads=False)
    return Task(call, None, dst, [tensor], finish, channel=("any", tag), serial=True)
