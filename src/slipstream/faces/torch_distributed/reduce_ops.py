"""c10d's reduce operations in the engine's terms."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from slipstream import _core
from slipstream.base.dtypes import Op
from slipstream.faces.torch_tensors import CODES

__all__ = ["premultiplied", "prescale", "reduction"]

_c10d: Any = torch._C._distributed_c10d

_Kind = _c10d.ReduceOp.RedOpType

_OPS: dict[Any, int] = {
    _Kind.SUM: int(Op.SUM),
    _Kind.AVG: int(Op.AVG),
    _Kind.PRODUCT: int(Op.PROD),
    _Kind.MIN: int(Op.MIN),
    _Kind.MAX: int(Op.MAX),
    _Kind.BAND: int(Op.BAND),
    _Kind.BOR: int(Op.BOR),
    _Kind.BXOR: int(Op.BXOR),
    _Kind.PREMUL_SUM: int(Op.SUM),
}


_known: dict[tuple[int, torch.dtype], tuple[int, int, bool]] = {}


def reduction(reduce_op: Any, dtype: torch.dtype) -> tuple[int, int, bool]:
    """The engine's codes of ``dtype`` and of c10d's ``reduce_op``, and whether the inputs go in as they are.

    They do not for PREMUL_SUM: see `prescale` and `premultiplied`. ValueError when dtype and operation do not go
    together.
    """
    key = (int(reduce_op.op), dtype)
    codes = _known.get(key)
    if codes is None:
        codes = _known[key] = _look_up(reduce_op.op, dtype)
    return codes


def _look_up(kind: Any, dtype: torch.dtype) -> tuple[int, int, bool]:
    code, op = CODES.get(dtype), _OPS[kind]
    if code is None:
        raise ValueError(f"slipstream cannot reduce {dtype}")
    if not _core.reduces(code, op) or (kind == _Kind.AVG and dtype is torch.bool):
        raise ValueError(f"ReduceOp.{kind.name} is not defined for {dtype}")
    return code, op, kind != _Kind.PREMUL_SUM


_SCALED_BY_F32 = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
)  # PyTorch multiplies them by a factor of this type


def prescale(reduce_op: Any, dtype: torch.dtype) -> float | None:
    """The prescale that gives the same bits as PREMUL_SUM's own product; None if there is none.

    There is one for the common floats and a factor that is a number. 0.0 and -0.0 are one number to Python.
    """
    factor = reduce_op.factor
    if not isinstance(factor, float) or factor == 0.0:
        return None
    if dtype is torch.float64:
        return factor
    return ctypes.c_float(factor).value if dtype in _SCALED_BY_F32 else None


def premultiplied(tensor: torch.Tensor, reduce_op: Any) -> torch.Tensor:
    """``tensor``, times the factor (a number, or a tensor of one element) of PREMUL_SUM if that is the operation."""
    if reduce_op.op != _Kind.PREMUL_SUM:
        return tensor
    factor = reduce_op.factor
    if isinstance(factor, torch.Tensor):
        factor = factor.to(tensor.device)
    # PyTorch does not multiply floats of 8 bits
    operand = tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor
    product: torch.Tensor = operand * factor
    return product.to(tensor.dtype)
