"""Tensors as the engine sees them: an address, a count and a dtype code.

A tensor the engine can work on directly is *plain*: strided, on the CPU, contiguous, with its bits as they
are (no lazy conjugation or negation). Every other tensor is copied to a plain one, and back where it is a
result.
"""

from __future__ import annotations

import torch

from slipstream.base.dtypes import DType

__all__ = ["CODES", "byte_code", "dtype_code", "is_plain", "plain_copy", "write_back"]

CODES: dict[torch.dtype, int] = {
    torch.float64: int(DType.F64),
    torch.float32: int(DType.F32),
    torch.float16: int(DType.F16),
    torch.bfloat16: int(DType.BF16),
    torch.float8_e4m3fn: int(DType.F8E4M3),
    torch.float8_e5m2: int(DType.F8E5M2),
    torch.int8: int(DType.I8),
    torch.int16: int(DType.I16),
    torch.int32: int(DType.I32),
    torch.int64: int(DType.I64),
    torch.uint8: int(DType.U8),
    torch.uint16: int(DType.U16),
    torch.uint32: int(DType.U32),
    torch.uint64: int(DType.U64),
    torch.bool: int(DType.BOOL),
    torch.complex64: int(DType.C64),
    torch.complex128: int(DType.C128),
}


def dtype_code(tensor: torch.Tensor) -> int:
    """The engine's code of a tensor's dtype; raises ValueError when the engine does not know it."""
    code = CODES.get(tensor.dtype)
    if code is None:
        raise ValueError(f"Tensor type {tensor.dtype} is not supported.")
    return code


def byte_code(tensor: torch.Tensor) -> tuple[int, int]:
    """Code and elements per element for moving a tensor of any dtype: as bytes where the engine has no code."""
    code = CODES.get(tensor.dtype)
    return (int(DType.U8), tensor.element_size()) if code is None else (code, 1)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the engine can read and write the memory of ``tensor`` as it lies."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def plain_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor with the values of ``tensor``, which shares no memory with it; sparse ones raise
    ValueError.
    """
    if tensor.layout is not torch.strided:
        raise ValueError("Tensor is required to be dense; see sparse_allreduce_async for sparse ones.")
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    copy.copy_(tensor.detach())
    return copy


def write_back(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies a result into ``target`` (same shape), whatever its strides, device or place in an autograd
    graph.
    """
    with torch.no_grad():
        target.detach().copy_(source)
