"""JAX's collectives of float16 over MPI: XLA knows no such type there, so they travel as float32.

What `jit` puts in by itself, where it shards arrays, is out of reach: XLA refuses float16 there with an error.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["add"]

_PRIMITIVES = (
    *("psum_p", "psum_invariant_p", "pmax_p", "pmin_p", "reduce_scatter_p"),
    *("all_gather_p", "all_gather_invariant_p"),
)


def add() -> None:
    """Replaces the rules by which these operations are lowered for CPUs.

    JAX's rules are no public interface. If they are not what they were, nothing happens, and XLA refuses float16.
    """
    parallel: Any = importlib.import_module("jax._src.lax.parallel")
    mlir: Any = importlib.import_module("jax._src.interpreters.mlir")
    rules = getattr(mlir, "_lowerings", {})
    for name in _PRIMITIVES:
        primitive = getattr(parallel, name, None)
        rule = getattr(rules.get(primitive), "rule", None)
        if rule is not None:
            mlir.register_lowering(primitive, _wide(rule), platform="cpu")


def _wide(rule: Callable[..., Any]) -> Callable[..., Any]:
    """``rule``, which lowers an operation; for float16 over MPI it lowers that of float32, between conversions."""

    def lower(ctx: Any, *values: Any, **parameters: Any) -> Any:
        if not _over_mpi() or not any(_is_half(aval) for aval in (*ctx.avals_in, *ctx.avals_out)):
            return rule(ctx, *values, **parameters)
        inner = ctx.replace(
            avals_in=[_widened(aval) for aval in ctx.avals_in],
            avals_out=[_widened(aval) for aval in ctx.avals_out],
        )
        wide = [
            _converted(one, "F32Type") if _is_half(aval) else one
            for one, aval in zip(values, ctx.avals_in, strict=True)
        ]
        return [
            _converted(one, "F16Type") if _is_half(aval) else one
            for one, aval in zip(rule(inner, *wide, **parameters), ctx.avals_out, strict=True)
        ]

    return lower


def _over_mpi() -> bool:
    config: Any = importlib.import_module("jax._src.config")
    distributed: Any = importlib.import_module("jax._src.distributed")
    way = getattr(config, "cpu_collectives_implementation", None)
    return getattr(way, "value", None) == "mpi" and distributed.global_state.num_processes > 1


def _is_half(aval: Any) -> bool:
    return getattr(aval, "dtype", None) == np.float16


def _widened(aval: Any) -> Any:
    return aval.update(dtype=np.dtype(np.float32)) if _is_half(aval) else aval


def _converted(value: Any, kind: str) -> Any:
    ir: Any = importlib.import_module("jaxlib.mlir.ir")
    hlo: Any = importlib.import_module("jaxlib.mlir.dialects.stablehlo")
    element = getattr(ir, kind).get()
    return hlo.convert(ir.RankedTensorType.get(ir.RankedTensorType(value.type).shape, element), value)
