"""Tensors as the engine sees them: an address, a count and a dtype code.

A tensor the engine can work on directly is *plain*: strided, on the CPU, contiguous, with its bits as they
are (no lazy conjugation or negation). Every other tensor is copied to a plain one, and back where it is a
result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_float
from typing import Any

import torch

from slipstream import _core
from slipstream.base.dtypes import DType
from slipstream.comm.collectives.copies_back import OPEN, CopyBack, await_memory, settle
from slipstream.comm.membership.group import Group
from slipstream.gradients.agreement import description

__all__ = [
    "CODES",
    "DTYPES",
    "await_tensor",
    "byte_code",
    "check_dense",
    "check_writable",
    "copy_back",
    "describe",
    "dtype_code",
    "factor_for",
    "is_plain",
    "new_tensor",
    "plain_copy",
    "shares_elements",
    "span",
    "unset",
    "write_back",
]

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
_LARGE = 4 << 20  # bytes

DTYPES = {code: dtype for dtype, code in CODES.items()}


def dtype_code(tensor: torch.Tensor) -> int:
    """The engine's code of a tensor's dtype; raises ValueError when the engine does not know it."""
    code = CODES.get(tensor.dtype)
    if code is None:
        raise ValueError(f"Tensor type {tensor.dtype} is not supported.")
    return code


def describe(name: str, tensor: torch.Tensor) -> str:
    """A parameter in words: its name, shape and dtype."""
    return description(name, tensor.shape, str(tensor.dtype).removeprefix("torch."))


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


_DOUBLE = frozenset((torch.float64, torch.complex128))


def factor_for(dtype: torch.dtype, factor: float) -> float:
    """A factor as numbers of this dtype are multiplied by it: floating-point ones below float64 by a float32."""
    if factor == 1.0 or dtype in _DOUBLE or not (dtype.is_floating_point or dtype.is_complex):
        return factor
    return c_float(factor).value


def check_dense(tensor: torch.Tensor) -> None:
    """ValueError if the tensor is sparse, or has no values."""
    if tensor.is_meta:
        raise ValueError(
            "a tensor on the meta device has no values: give it memory first, as to_empty() does"
        )
    if tensor.layout is not torch.strided:
        raise ValueError("Tensor is required to be dense; see sparse_allreduce_async for sparse ones.")


def check_writable(tensor: torch.Tensor) -> None:
    """ValueError if elements of the tensor share memory, as those of ``expand`` do: each would need its own value."""
    if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        raise ValueError(
            f"a result cannot be written to a tensor whose elements share memory (shape {tuple(tensor.shape)}, strides "
            f"{tensor.stride()}): give its clone()"
        )


def unset(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, a plain one that nothing has been written to; in huge pages if it is large, as NumPy has it."""
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes >= _LARGE:
        _core.prefer_huge_pages(tensor.data_ptr(), nbytes)
    return tensor


def new_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A plain tensor that nothing has been written to: on the CPU, whatever default device the script has set."""
    return unset(torch.empty(shape, dtype=dtype, device="cpu"))


def plain_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor with the values of ``tensor``, which shares no memory with it; sparse ones raise
    ValueError.
    """
    check_dense(tensor)
    copy = new_tensor(tensor.shape, tensor.dtype)
    copy.copy_(tensor.detach())
    return copy


def write_back(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies a result into ``target`` (same shape), whatever its strides, device or place in an autograd
    graph.
    """
    with torch.no_grad():
        target.detach().copy_(source)


# ---- memory that others use


def span(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last; 0 for tensors without elements."""
    if not tensor.numel():
        return 0
    steps = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


def shares_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two strided tensors have memory in common: two columns of a matrix have not."""
    return _uses(a, b.data_ptr(), b.data_ptr() + span(b), b)


def _uses(tensor: torch.Tensor, begin: int, end: int, other: torch.Tensor | None) -> bool:
    """Whether the tensor shares these addresses, of which ``other``, if there is one, uses what its strides say."""
    low, high = tensor.data_ptr(), tensor.data_ptr() + span(tensor)
    if low >= end or begin >= high or not (tensor.is_cpu if other is None else tensor.device == other.device):
        return False
    if tensor.is_contiguous() and (other is None or other.is_contiguous()):
        return True
    start = min(low, begin)
    used = torch.zeros(max(high, end) - start, dtype=torch.bool, device="cpu")
    _bytes_of(tensor, used, start).fill_(True)
    return bool((used[begin - start : end - start] if other is None else _bytes_of(other, used, start)).any())


def _bytes_of(tensor: torch.Tensor, memory: torch.Tensor, start: int) -> torch.Tensor:
    """Where the bytes of ``tensor`` are in ``memory``, which stands for what lies at ``start``."""
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()]
    return memory.as_strided((*tensor.shape, size), (*strides, 1), tensor.data_ptr() - start)


def await_tensor(
    group: Group, name: str, tensor: torch.Tensor, *, writes: bool, channel: int = 0, timeout: float = 0.0
) -> None:
    """`await_memory`, for what a copy of the tensor reads (and one back to it writes)."""
    if tensor.layout is not torch.strided:
        return
    address, nbytes = tensor.data_ptr(), span(tensor)
    if tensor.is_cpu:
        await_memory(
            group, name, address, nbytes, writes=writes, channel=channel, memory=tensor, timeout=timeout
        )
    elif OPEN:
        settle(group, channel, name, (address, nbytes, tensor))


def copy_back(
    group: Group,
    name: str,
    tensors: Sequence[torch.Tensor],
    copy: Callable[[], None],
    channel: int = 0,
) -> CopyBack:
    """The copy of results to these tensors, which later operations on them wait for once its own has begun."""

    def overlaps(begin: int, end: int, memory: Any) -> bool:
        return any(_uses(tensor, begin, end, memory) for tensor in tensors)

    def copy_wherever() -> None:
        # Another thread may make the copy, which is not in the mode that such tensors need.
        needed = any(tensor.is_inference() for tensor in tensors)
        with torch.inference_mode(needed or torch.is_inference_mode_enabled()):
            copy()

    return CopyBack(group, channel, name, overlaps, copy_wherever)
