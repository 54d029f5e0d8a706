"""What the operations of `horovod.torch` do with their arguments before they start."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from slipstream.base.arguments import as_number, check_int, check_text
from slipstream.base.dtypes import WireType, as_wire
from slipstream.comm.collectives.interruption import whole
from slipstream.comm.collectives.wires import wire_of_job
from slipstream.comm.membership.group import world
from slipstream.faces.horovod.handles import settle
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.torch.compression import (
    AnyCompression,
    Compression,
    as_compressor,
    makes_tensors,
    wire_name,
)
from slipstream.faces.torch.in_flight import Tensors
from slipstream.faces.torch_tensors import await_tensor

_F = TypeVar("_F", bound=Callable[..., Any])


def _check_process_set(name: str, value: object) -> None:
    if not isinstance(value, ProcessSet):
        cure = f": hvd.add_process_set({value})" if isinstance(value, list) else ""
        raise TypeError(f"{name} must be a ProcessSet, not {type(value).__name__}{cure}")


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "process_set": _check_process_set,
    "name": check_text,
    "root_rank": check_int,
    "prescale_factor": as_number,
    "postscale_factor": as_number,
}

whole_call = whole(lambda *_, **__: world(), checks=_CHECKS)


def of_a_tensor(operation: _F) -> _F:
    """Decorates an operation whose first argument is a tensor: TypeError for anything else.

    Its call is whole (`interruption.whole`).
    """

    @functools.wraps(operation)
    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{operation.__name__} takes a torch.Tensor, not {type(tensor).__name__}")
        return operation(tensor, *args, **kwargs)

    return whole_call(call)  # type: ignore[return-value]


def of_tensors(operation: _F) -> _F:
    """Decorates an operation whose first argument is an iterable of tensors, as `of_a_tensor` does; it gets a list."""

    @functools.wraps(operation)
    def call(tensors: Iterable[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        found = list(tensors)
        for tensor in found:
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(
                    f"{operation.__name__} takes a list of torch.Tensor, not of {type(tensor).__name__}"
                )
        return operation(found, *args, **kwargs)

    return whole_call(call)  # type: ignore[return-value]


def compressed(
    tensor: torch.Tensor, name: str, compression: AnyCompression, process_set: ProcessSet
) -> tuple[torch.Tensor, Any]:
    """What travels, made when no earlier operation writes to the tensor any more."""
    if makes_tensors(as_compressor(compression)):
        settle(Tensors([tensor], False), process_set.group, name)
        await_tensor(process_set.group, name, tensor, writes=False)
    return compression.compress(tensor)


def wire_for(compression: AnyCompression, process_set: ProcessSet) -> WireType:
    """What sums travel as between hosts: as ``compression`` asks for, or else as the job's setting does."""
    if compression is Compression.none:
        return wire_of_job(process_set.group)
    return as_wire(wire_name(compression))


def wire_alone(compression: AnyCompression, name: str, process_set: ProcessSet) -> WireType:
    """`wire_for` of an operation that has no room for other tensors than the caller's; ValueError if it needs that."""
    if compression is not Compression.none:
        if makes_tensors(as_compressor(compression)):
            raise ValueError(
                f"{name} takes Compression.none, exact, f8, int8 or wire(name). Others make a tensor of their own: "
                f"use {name.replace('_async', '').rstrip('_')}"
            )
        compression.compress(torch.empty(0))
    return wire_for(compression, process_set)
