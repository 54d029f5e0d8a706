"""Derivatives in reverse: what is differentiated is the sum of all ranks' losses, as with `slipstream.torch`.

Each operation is linear, and its transpose is another one, which every rank runs.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from slipstream.base.dtypes import Op
from slipstream.faces.jax.calls import Kind, Spec, called
from slipstream.faces.jax.order import ordered

__all__ = ["differentiable"]


def _forward(spec: Spec, tokens: tuple[Any, ...], *arrays: Any) -> tuple[tuple[Any, ...], int]:
    if spec.kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER) and spec.op not in (Op.SUM, Op.AVG):
        raise NotImplementedError(f"only sums and averages have a derivative, not {Op(spec.op).name}")
    return called(spec, tokens, *arrays), len(tokens)


def _backward(spec: Spec, tokens: int, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
    *given, _ = cotangents  # the last is that of a token
    return (tuple([None] * tokens), *_transposed(spec, given))


def _transposed(spec: Spec, given: list[Any]) -> list[Any]:
    run = functools.partial(ordered, differentiable=differentiable, arrays=given, after=())
    if spec.kind is Kind.REDUCE_SCATTER:
        factor = spec.prescale * spec.postscale / (spec.size if spec.op == Op.AVG else 1)
        gathered = run(replace(spec, kind=Kind.ALL_GATHER, op=0, prescale=1.0, postscale=1.0))
        return [x * jnp.asarray(factor, x.dtype) for x in gathered] if factor != 1.0 else gathered
    if spec.kind is Kind.ALL_GATHER:
        return run(replace(spec, kind=Kind.REDUCE_SCATTER, op=int(Op.SUM)))
    if spec.kind is Kind.BROADCAST:
        sums = run(replace(spec, kind=Kind.ALL_REDUCE, op=int(Op.SUM), root=0, source=0, unused=True))
        return sums if spec.source else [jnp.zeros_like(x) for x in sums]
    if spec.kind is Kind.SEND_RECV:
        return run(replace(spec, root=spec.source, source=spec.root))
    return run(spec)  # all_reduce, all_to_all


differentiable = jax.custom_vjp(called, nondiff_argnums=(0,))
"""`called`, with a derivative in reverse."""
differentiable.defvjp(_forward, _backward)
