"""All-reduce and reduce-scatter, started asynchronously: Horovod's reductions on addresses.

``wire``: what large float32 sums and averages travel as between hosts. All other tensors travel as they are.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from slipstream.base.dtypes import WireType
from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.copies_back import CopyBack
from slipstream.comm.collectives.interruption import Together
from slipstream.comm.collectives.wires import wire_of_sum
from slipstream.faces.horovod.handles import Grouped, PendingResult
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.horovod.reduce_ops import ENGINE_OPS, Adasum, engine_op
from slipstream.faces.torch.adasum import start_adasum_of, start_adasum_of_each
from slipstream.faces.torch_tensors import (
    await_tensor,
    copy_back,
    dtype_code,
    factor_for,
    is_plain,
    new_tensor,
    plain_copy,
    unset,
    write_back,
)

__all__ = [
    "check_rows",
    "copied",
    "packed_label",
    "placed",
    "row_counts",
    "start_all_reduce",
    "start_grouped_all_reduce",
    "start_grouped_reduce_scatter",
    "start_reduce_scatter",
]

# Tensors of a grouped operation up to this size travel together: below it the price is in the messages, not
# the bytes.
PACK_BYTES = 128 << 10
_MOST_SHAPES = 200  # letters of their text


def copied(tensor: torch.Tensor, name: str, process_set: ProcessSet) -> torch.Tensor:
    """A plain copy of what an operation reads, once no earlier one writes to it any more."""
    await_tensor(process_set.group, name, tensor, writes=False)
    return plain_copy(tensor)


def start_all_reduce(
    tensor: torch.Tensor,
    in_place: bool,
    label: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: WireType = WireType.EXACT,
    sync: bool = False,
    landing: CopyBack | None = None,
) -> PendingResult:
    """Starts (with ``sync``: runs) an all-reduce of one tensor; the result is ``tensor`` itself or a new one
    of its shape. ``label``: what errors call it. ``landing``: where the result of a plain ``tensor`` goes from there.
    """
    dtype = dtype_code(tensor)
    if op.__class__ is int and (0 <= op < 2 or 2 < op <= 5):
        code = ENGINE_OPS[op]
    elif op == Adasum:
        text = adasum_label(label or "allreduce", [tensor])
        return start_adasum_of(tensor, in_place, text, prescale, postscale, process_set)
    else:
        code = engine_op(op)
    finish: Callable[[], None] | None = landing
    group = process_set.group
    plain = is_plain(tensor)
    if plain:
        source = tensor
        result = buffer = tensor if in_place else unset(torch.empty_like(tensor))
    else:
        await_tensor(group, "allreduce", tensor, writes=in_place)
        source = buffer = plain_copy(tensor)
        result = tensor if in_place else torch.empty_like(tensor, memory_format=torch.contiguous_format)
        if in_place:
            finish = landing = copy_back(group, "allreduce", [tensor], _Finish(tensor, buffer))
        elif not is_plain(result):
            finish = _Finish(result, buffer)
        else:
            result = buffer
    work = addresses.all_reduce(
        group,
        source.data_ptr(),
        buffer.data_ptr(),
        source.numel(),
        dtype,
        code,
        name=label,
        shape=source.shape,
        prescale=factor_for(tensor.dtype, prescale),
        postscale=factor_for(tensor.dtype, postscale),
        wire=wire and wire_of_sum(wire, dtype, tensor.nbytes, code),
        keep=(source, buffer) if landing is None else landing.keeping(source, buffer),
        sync=sync and landing is None,  # a call that is broken off leaves its copy to later ones
    )
    return PendingResult(work, result, finish)


class _Finish:
    """Copies a result to where it belongs, once its operation is done."""

    __slots__ = ("buffer", "target")

    def __init__(self, target: torch.Tensor, buffer: torch.Tensor) -> None:
        self.target = target
        self.buffer = buffer

    def __call__(self) -> None:
        write_back(self.target, self.buffer)


def start_grouped_all_reduce(
    tensors: Sequence[torch.Tensor],
    in_place: bool,
    label: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: WireType = WireType.EXACT,
) -> Grouped:
    """Starts an all-reduce of several tensors; the result is the list of theirs.

    Small ones of one dtype travel as one message, as they are. How they are packed depends on shapes, dtypes and the
    wire alone, so all ranks agree about it.
    """
    if op == Adasum and tensors:
        text = adasum_label(label or "grouped_allreduce", tensors)
        return start_adasum_of_each(tensors, in_place, text, prescale, postscale, process_set)
    packs = _packs(tensors, engine_op(op), wire)
    results: list[Any] = [None] * len(tensors)
    parts: list[PendingResult] = []
    packed: set[int] = set()
    with Together(process_set.group, "grouped_allreduce"):
        for pack in packs.values():
            if len(pack) < 2:
                continue
            for index in pack:
                await_tensor(process_set.group, "grouped_allreduce", tensors[index], writes=in_place)
            flat = torch.cat([tensors[index].detach().reshape(-1).cpu() for index in pack])
            views = torch.split(flat, [tensors[index].numel() for index in pack])
            for index, view in zip(pack, views, strict=True):
                results[index] = tensors[index] if in_place else view.view(tensors[index].shape)
            targets = [results[index] for index in pack]
            text = packed_label(label, [tensors[index].shape for index in pack])
            landing = None
            if in_place:
                landing = copy_back(process_set.group, "grouped_allreduce", targets, _Unpack(targets, views))
            scales = prescale, postscale
            parts.append(start_all_reduce(flat, True, text, op, *scales, process_set, landing=landing))
            packed.update(pack)
        for index, tensor in enumerate(tensors):
            if index not in packed:
                part = start_all_reduce(tensor, in_place, None, op, prescale, postscale, process_set, wire)
                results[index] = part.result
                parts.append(part)
    devices = [tensor.device for tensor in tensors]
    return Grouped(parts, lambda _: [x.to(d) for x, d in zip(results, devices, strict=True)])


def _packs(tensors: Sequence[torch.Tensor], op: int, wire: WireType) -> dict[torch.dtype, list[int]]:
    """Which tensors are small, by dtype; a wire is for tensors that travel alone."""
    packs: dict[torch.dtype, list[int]] = {}
    for index, tensor in enumerate(tensors):
        code, nbytes = dtype_code(tensor), tensor.numel() * tensor.element_size()
        if (
            tensor.layout is torch.strided
            and nbytes <= PACK_BYTES
            and not wire_of_sum(wire, code, nbytes, op)
        ):
            packs.setdefault(tensor.dtype, []).append(index)
    return packs


def packed_label(label: str | None, shapes: Sequence[Sequence[int]]) -> str:
    """What errors call tensors that travel as one message; it differs if their shapes do, so that none are mixed."""
    text = _listed(["x".join(map(str, shape)) for shape in shapes])
    return f"{label or 'grouped_allreduce'} of shapes {text}"


def adasum_label(label: str, tensors: Sequence[torch.Tensor]) -> str:
    """What errors call an Adasum; it differs if dtypes or shapes do."""
    words = [f"{str(one.dtype).removeprefix('torch.')} {tuple(one.shape)}" for one in tensors]
    return f"{label}, Adasum of {_listed(words)}"


def _listed(words: Sequence[str]) -> str:
    text = ", ".join(words)
    if len(text) > _MOST_SHAPES:
        text = f"{text[:_MOST_SHAPES]}... ({len(words)} tensors, digest {zlib.crc32(text.encode()):08x})"
    return text


class _Unpack:
    """Copies the slices of a packed buffer back to the tensors they came from."""

    __slots__ = ("targets", "views")

    def __init__(self, targets: Sequence[torch.Tensor], views: Sequence[torch.Tensor]) -> None:
        self.targets = targets
        self.views = views

    def __call__(self) -> None:
        for target, view in zip(self.targets, self.views, strict=True):
            write_back(target, view.view(target.shape))


def row_counts(rows: int, size: int) -> list[int]:
    """How many of ``rows`` each of ``size`` ranks gets: even shares, the first ranks one more."""
    least, more = divmod(rows, size)
    return [least + (number < more) for number in range(size)]


def check_rows(tensor: torch.Tensor) -> None:
    """ValueError if there are no rows to scatter."""
    if tensor.dim() == 0:
        raise ValueError("reducescatter needs a tensor of at least one dimension")


def start_reduce_scatter(
    tensor: torch.Tensor,
    label: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: WireType = WireType.EXACT,
    sync: bool = False,
) -> PendingResult:
    """Starts (with ``sync``: runs) a reduce-scatter along dim 0; the result is this rank's rows. ValueError
    for 0-dim tensors.
    """
    dtype = dtype_code(tensor)
    code = engine_op(op)
    check_rows(tensor)
    group = process_set.group
    rows = row_counts(tensor.shape[0], group.size)
    width = tensor[0].numel() if tensor.shape[0] else 0
    source = tensor if is_plain(tensor) else copied(tensor, "reducescatter", process_set)
    shape = (rows[group.rank], *tensor.shape[1:])
    buffer = new_tensor(shape, tensor.dtype)
    work = addresses.reduce_scatter(
        group,
        source.data_ptr(),
        buffer.data_ptr(),
        [count * width for count in rows],
        dtype,
        code,
        name=label,
        shape=source.shape,
        prescale=factor_for(tensor.dtype, prescale),
        postscale=factor_for(tensor.dtype, postscale),
        wire=wire and wire_of_sum(wire, dtype, tensor.nbytes, code),
        keep=(source, buffer),
        sync=sync,
    )
    return placed(work, buffer, tensor.device)


def start_grouped_reduce_scatter(
    tensors: Sequence[torch.Tensor],
    label: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: WireType = WireType.EXACT,
) -> Grouped:
    """Starts a reduce-scatter of each tensor; the result is the list of theirs."""
    for tensor in tensors:
        check_rows(tensor)
    with Together(process_set.group, "grouped_reducescatter"):
        return Grouped(
            [
                start_reduce_scatter(tensor, label, op, prescale, postscale, process_set, wire)
                for tensor in tensors
            ]
        )


def placed(work: Any, buffer: torch.Tensor, device: torch.device) -> PendingResult:
    """A pending operation whose result is ``buffer``, on the device of the tensor it was made from."""
    if device.type == "cpu":
        return PendingResult(work, buffer)
    result = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)
    return PendingResult(work, result, _Finish(result, buffer))
