"""Operations as primitives of JAX with an ordered effect: all of them run, in the order of the program.

JAX hands a token from each to the next, also through loops, branches, and from one compiled function to another. How
an effect is made known, and a token passed, is no public interface of JAX.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from slipstream.base.dtypes import from_numpy
from slipstream.faces.jax.calls import TARGET, Kind, Spec
from slipstream.faces.mpi.ops import ANY_TAG

__all__ = ["allreduce", "plain", "sendrecv"]

_effects: Any = importlib.import_module("jax._src.effects")
_token: Any = importlib.import_module("jax._src.core").abstract_token
_dispatch: Any = importlib.import_module("jax._src.dispatch")


class _InOrder(_effects.Effect):  # type: ignore[misc]
    """Of every operation."""

    def __str__(self) -> str:
        return "slipstream"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _InOrder)

    def __hash__(self) -> int:  # the same in all processes, as keys of compiled functions are
        return 0x511B57EA


_in_order = _InOrder()
for _kinds in (
    *(_effects.lowerable_effects, _effects.ordered_effects),
    *(_effects.control_flow_allowed_effects, _effects.custom_derivatives_allowed_effects),
):
    _kinds.add_type(_InOrder)


def _abstract(*_: Any, spec: Spec, **__: Any) -> tuple[list[Any], set[Any]]:
    return [ShapedArray(shape, jnp.dtype(dtype)) for shape, dtype in spec.results], {_in_order}


def _lowered(ctx: Any, *arrays: Any, spec: Spec) -> list[Any]:
    """The call, with the token of what is before it as the last argument, and its own as the last result."""
    inner = ctx.replace(avals_in=(*ctx.avals_in, _token), avals_out=(*ctx.avals_out, _token))
    rule: Any = jax.ffi.ffi_lowering(TARGET, has_side_effect=True)
    before = ctx.tokens_in.get(_in_order)
    *results, after = rule(inner, *arrays, before, call=spec.fields(len(arrays)))
    ctx.set_tokens_out(mlir.TokenSet({_in_order: after}))
    return list(results)


def _primitive(name: str, lowered: Callable[..., Any] = _lowered, abstract: Any = _abstract) -> Any:
    made: Any = Primitive(f"slipstream_mpi_{name}")
    made.multiple_results = True
    made.def_impl(functools.partial(_dispatch.apply_primitive, made))
    made.def_effectful_abstract_eval(abstract)
    mlir.register_lowering(made, lowered, platform="cpu")
    return made


def _bound(primitive: Any, spec: Spec, *arrays: Any, **parameters: Any) -> list[Any]:
    for x in arrays:
        from_numpy(np.dtype(x.dtype))  # TypeError: the engine has no such dtype
    found: list[Any] = primitive.bind(*arrays, spec=spec, **parameters)
    return found


def _batched(
    primitive: Any, arrays: Sequence[Any], dims: Sequence[Any], *, spec: Spec, **parameters: Any
) -> tuple[list[Any], list[Any]]:
    """One operation on the larger array, whose mapped axis is the first."""
    (x,), (dim,) = arrays, dims
    x = jnp.moveaxis(x, dim, 0)
    results = tuple(((x.shape[0], *shape), dtype) for shape, dtype in spec.results)
    made = primitive.bind(x, spec=replace(spec, results=results), **parameters)
    return made, [0] * len(made)


_PLAIN = {
    kind: _primitive(kind.name.lower())
    for kind in (
        *(Kind.ALL_GATHER, Kind.ALL_TO_ALL, Kind.BARRIER, Kind.BROADCAST, Kind.EXCHANGE),
        *(Kind.GATHER, Kind.REDUCE, Kind.SCATTER),
    )
}
for _kind in (Kind.BROADCAST, Kind.REDUCE):  # of each element by itself
    batching.primitive_batchers[_PLAIN[_kind]] = functools.partial(_batched, _PLAIN[_kind])
batching.primitive_batchers[_PLAIN[Kind.BARRIER]] = lambda _, __, *, spec: (plain(spec), [])


def plain(spec: Spec, *arrays: Any) -> list[Any]:
    """The results of an operation that has no derivative."""
    return _bound(_PLAIN[spec.kind], spec, *arrays)


# ---- allreduce: of a sum the transpose leaves everything as it is, and the transpose of that is the sum

_allreduce = _primitive("allreduce")
_left = _primitive(
    "allreduce_transposed",
    lambda ctx, x, *, spec: [x],
    lambda *avals, spec: (_abstract(spec=spec)[0], set()),
)


def allreduce(spec: Spec, x: Any) -> Any:
    """The reduction of ``x`` over the ranks; differentiable as mpi4jax's if it is a sum."""
    (result,) = _bound(_allreduce, spec, x)
    return result


def _check_sum(spec: Spec) -> None:
    if spec.op:
        raise NotImplementedError("allreduce has a derivative with op=MPI.SUM only")


def _linear(primitive: Any, other: Any) -> None:
    def forward(values: Any, tangents: Any, *, spec: Spec) -> tuple[Any, Any]:
        _check_sum(spec)
        return primitive.bind(*values, spec=spec), primitive.bind(*tangents, spec=spec)

    def transpose(given: Any, _: Any, *, spec: Spec) -> list[Any]:
        _check_sum(spec)
        found: list[Any] = other.bind(*map(ad.instantiate_zeros, given), spec=spec)
        return found

    ad.primitive_jvps[primitive] = forward
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = functools.partial(_batched, primitive)


_linear(_allreduce, _left)
_linear(_left, _allreduce)


# ---- sendrecv: its transpose goes the other way. A tangent would have to arrive on another rank, so it has to be
# transposed before it runs


def _exchange_lowered(ctx: Any, x: Any, *, spec: Spec, tangent: bool) -> list[Any]:
    if tangent:
        raise RuntimeError(
            "sendrecv has no derivative in forward mode: the tangent would be of another rank's input. "
            "Use reverse mode (grad, vjp, jacrev)"
        )
    return _lowered(ctx, x, spec=spec)


_sendrecv = _primitive("sendrecv", _exchange_lowered)


def sendrecv(spec: Spec, x: Any) -> Any:
    """What has come; ``x`` is sent."""
    (result,) = _bound(_sendrecv, spec, x, tangent=False)
    return result


def _forward(values: Any, tangents: Any, *, spec: Spec, tangent: bool) -> tuple[Any, Any]:
    results = _sendrecv.bind(*values, spec=spec, tangent=tangent)
    return results, _sendrecv.bind(*tangents, spec=replace(spec, status=None), tangent=not tangent)


def _turned(given: Any, x: Any, *, spec: Spec, tangent: bool) -> list[Any]:
    """What has been received goes back under the tag that it came with, if the receive has named it."""
    named = spec.recv_tag != ANY_TAG
    back = replace(
        spec,
        root=spec.source,
        source=spec.root,
        tag=spec.recv_tag if named else spec.tag,
        recv_tag=spec.tag if named else ANY_TAG,
        results=((tuple(x.aval.shape), x.aval.dtype.name),),
        status=None,
    )
    found: list[Any] = _sendrecv.bind(*map(ad.instantiate_zeros, given), spec=back, tangent=not tangent)
    return found


ad.primitive_jvps[_sendrecv] = _forward
ad.primitive_transposes[_sendrecv] = _turned
batching.primitive_batchers[_sendrecv] = functools.partial(_batched, _sendrecv)
