"""Functional collectives that do not reach a process group written in Python.

C++ calls a Python group by the methods of PyTorch's trampoline; two operations that torch.compile may emit use others.
For them kernels are put in front that do what the C++ ones do, for groups of every backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["install"]

_c10d: Any = torch._C._distributed_c10d
_library: Any = None


def install() -> None:
    """Registers the kernels, once a process."""
    global _library
    if _library is not None:
        return
    library: Any = torch.library.Library
    _library = library("_c10d_functional", "IMPL")
    for device in ("CPU", "CUDA"):
        _library.impl("all_gather_into_tensor_out", _all_gather_out, device)
        _library.impl("batch_p2p_ops", _batch_p2p, device)


def _resolve(group: Any) -> Any:
    return _c10d._resolve_process_group(group) if isinstance(group, str) else group


def _all_gather_out(input: torch.Tensor, group_size: int, group: Any, *, out: torch.Tensor) -> torch.Tensor:
    _c10d._register_work(out, _resolve(group)._allgather_base(out, input))
    return out


def _batch_p2p(
    kinds: Sequence[str],
    peers: Sequence[int],
    tags: Sequence[int],
    tensors: Sequence[torch.Tensor],
    group: Any,
) -> list[torch.Tensor]:
    """Returns a tensor to wait for per operation: what is received, or an empty one for a send."""
    members = _resolve(group)
    device = tensors[0].device
    native = type(members) is _c10d.ProcessGroup and members._get_backend(device).supports_coalescing
    if native:
        members._start_coalescing(device)
    works = [
        (members.send if kind == "isend" else members.recv)([tensor], peer, tag)
        for kind, peer, tag, tensor in zip(kinds, peers, tags, tensors, strict=True)
    ]
    if native:
        works = [members._end_coalescing(device)] * len(works)
    results = [t.new_empty(0) if kind == "isend" else t for kind, t in zip(kinds, tensors, strict=True)]
    for result, work in zip(results, works, strict=True):
        _c10d._register_work(result, work)
    return results
