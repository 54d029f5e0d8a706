"""What the operations of `horovod.torch` do with their arguments before they start."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from slipstream.base.arguments import as_number, check_int, check_text
from slipstream.comm.collectives.interruption import whole
from slipstream.comm.membership.group import world
from slipstream.faces.horovod.handles import settle
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.torch.compression import Compression, Compressor, as_compressor
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
    tensor: torch.Tensor, name: str, compression: type[Compressor], process_set: ProcessSet
) -> tuple[torch.Tensor, Any]:
    """What travels, made when no earlier operation writes to the tensor any more."""
    if as_compressor(compression) is not Compression.none:
        settle(Tensors([tensor], False), process_set.group, name)
        await_tensor(process_set.group, name, tensor, writes=False)
    return compression.compress(tensor)
