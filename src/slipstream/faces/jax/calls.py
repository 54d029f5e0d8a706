"""An operation as XLA sees it: one custom call on the arrays of a tree, ordered by a token, and how `vmap` maps it.

The native handler (native/xla) begins one operation of the engine for each array, in their order, and completes XLA's
future when all are done. Small arrays are done at once, in XLA's thread.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from slipstream import _core
from slipstream.base.dtypes import from_numpy

__all__ = ["TARGET", "Kind", "Spec", "called"]

TARGET = "slipstream_call"
jax.ffi.register_ffi_target(TARGET, _core.xla_handler(), platform="cpu")


class Kind(IntEnum):
    """The collectives, as slipstream.h numbers them; SEND_RECV is a pair of its, EXCHANGE messages as MPI has them."""

    ALL_REDUCE = 1
    REDUCE_SCATTER = 2
    ALL_GATHER = 3
    BROADCAST = 4
    REDUCE = 5
    GATHER = 6
    SCATTER = 7
    ALL_TO_ALL = 8
    SEND = 9
    RECV = 10
    BARRIER = 11
    SEND_RECV = 100
    EXCHANGE = 101


# Their result is along dim 0 of other size, or in other order, than what they read.
_ALONG_DIM_0 = (Kind.REDUCE_SCATTER, Kind.ALL_GATHER, Kind.ALL_TO_ALL)


@dataclass(frozen=True)
class Spec:
    """All of an operation but its arrays. ``group``: its id, 0 for the world; ``size``: its ranks.

    ``root``: or the rank that a message goes to, or comes from. ``source``: the rank that one comes from;
    of a broadcast, whether this rank is the root. ``results``: (shape, dtype) of what is received. ``unused``: a rank
    that does not use the result takes part all the same. ``shapes``: whether arrays must have the same shape on all
    ranks, and not only as many elements. ``recv_tag``, ``status``: of an exchange; see native/xla/handler.h. Of
    ``status``, which keeps the object alive, the address is told.
    """

    kind: Kind
    size: int
    group: int = 0
    op: int = 0
    root: int = 0
    source: int = 0
    tag: int = 0
    wire: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    results: tuple[tuple[tuple[int, ...], str], ...] = ()
    unused: bool = False
    shapes: bool = False
    recv_tag: int = 0
    status: Any = None

    def fields(self, arrays: int) -> np.ndarray[Any, Any]:
        """What the native handler reads, in its order. ``arrays``: how many there are."""
        scales = struct.unpack("<qq", struct.pack("<dd", self.prescale, self.postscale))
        status = 0 if self.status is None else self.status.address
        parts = (self.kind, self.group, self.op, self.root, self.source, self.tag, self.wire)
        return np.array([*parts, *scales, arrays, self.recv_tag, status, self.shapes], np.int64)

    def result_of(self, x: Any) -> jax.ShapeDtypeStruct:
        """What becomes of one array."""
        shape = x.shape
        if self.kind is Kind.ALL_GATHER:
            shape = (shape[0] * self.size, *shape[1:])
        elif self.kind is Kind.REDUCE_SCATTER:
            shape = (shape[0] // self.size, *shape[1:])
        return jax.ShapeDtypeStruct(shape, x.dtype)


def called(spec: Spec, tokens: tuple[Any, ...], *arrays: Any) -> tuple[Any, ...]:
    """The results; and behind them the token of what comes after. It runs when all ``tokens`` are there."""
    for x in arrays:
        from_numpy(np.dtype(x.dtype))  # TypeError: the engine has no such dtype
    result: tuple[Any, ...] = _mapped(spec)(tokens, *arrays)
    return result


@functools.lru_cache(maxsize=4096)
def _mapped(spec: Spec) -> Callable[..., Any]:
    function: Callable[..., Any] = custom_vmap(functools.partial(_call, spec))

    def rule(_: int, batched: list[Any], tokens: tuple[Any, ...], *arrays: Any) -> tuple[Any, Any]:
        along = spec.kind in _ALONG_DIM_0
        moved = [
            jnp.moveaxis(x, 0, -1) if along and is_batched else x
            for x, is_batched in zip(arrays, batched[1:], strict=True)
        ]
        *results, after = function(tokens, *moved)
        flags = batched[1:] or [False] * len(results)
        if along:
            results = [
                jnp.moveaxis(x, -1, 0) if is_batched else x
                for x, is_batched in zip(results, flags, strict=True)
            ]
        return (*results, after), (*flags[: len(results)], False)

    function.def_vmap(rule)  # type: ignore[attr-defined]
    return function


def _call(spec: Spec, tokens: tuple[Any, ...], *arrays: Any) -> tuple[Any, ...]:
    results = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in spec.results]
    if spec.kind not in (Kind.SEND, Kind.RECV, Kind.BARRIER):
        results = [spec.result_of(x) for x in arrays]
    call = jax.ffi.ffi_call(
        TARGET,
        [*results, jax.ShapeDtypeStruct((), jnp.uint8)],
        # Switches off XLA's quick way, so only where nothing else would keep the operation.
        has_side_effect=spec.unused or spec.kind in (Kind.SEND, Kind.BARRIER),
    )
    return tuple(call(*arrays, *tokens, call=spec.fields(len(arrays))))
