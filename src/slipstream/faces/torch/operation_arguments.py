"""What the operations of `horovod.torch` do with their arguments before they start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from slipstream.comm.collectives.interruption import whole
from slipstream.comm.membership.group import world
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.torch.compression import Compression, Compressor, as_compressor
from slipstream.faces.torch_tensors import await_tensor

whole_call = whole(lambda *_, **__: world())


def expect(tensor: object, operation: str) -> None:
    """Raises TypeError for what is no tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{operation} takes a torch.Tensor, not {type(tensor).__name__}")


def expect_all(tensors: Iterable[torch.Tensor], operation: str) -> list[torch.Tensor]:
    """Returns the tensors as a list; raises TypeError for what is none."""
    found = list(tensors)
    for tensor in found:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{operation} takes a list of torch.Tensor, not of {type(tensor).__name__}")
    return found


def compressed(
    tensor: torch.Tensor, name: str, compression: type[Compressor], process_set: ProcessSet
) -> tuple[torch.Tensor, Any]:
    """What travels, made when no earlier operation writes to the tensor any more."""
    if as_compressor(compression) is not Compression.none:
        await_tensor(process_set.group, name, tensor, writes=False)
    return compression.compress(tensor)
