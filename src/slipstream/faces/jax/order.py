"""In which order operations run: XLA orders what depends on each other, and nothing else.

The operations of one traced function (of `jit`, of the body of a `scan`) are chained by a token, which each of them
gives to the next. Outside of traced functions each operation is over when it returns.
"""

from __future__ import annotations

import threading
from typing import Any

import jax
from jax.extend.core import get_opaque_trace_state

from slipstream.base.errors import SlipstreamError
from slipstream.comm.membership import job as jobs
from slipstream.faces.jax.calls import Spec, called

__all__ = ["ordered"]

_latest = threading.local()  # (state, token): of the latest operation that this thread has traced


def ordered(spec: Spec, differentiable: Any, arrays: list[Any], after: Any) -> list[Any]:
    """Calls the operation after the latest one of the same trace, and after all of the tree ``after`` is there.

    ``differentiable``: what is called in the place of `called`, if it is not None. Raises the job's error if the
    operation has failed, where it is over when this returns.
    """
    state = get_opaque_trace_state(convention="flax")
    before = getattr(_latest, "pair", None)
    tokens = (before[1],) if before is not None and before[0] == state else ()
    function = differentiable or called
    try:
        *results, token = function(spec, (*tokens, *jax.tree.leaves(after)), *arrays)
        if not _is_traced(token):
            jax.block_until_ready((results, token))
    except jax.errors.JaxRuntimeError as error:
        raise _of_job(error) from error
    _latest.pair = (state, token) if _is_traced(token) else None
    return results


def _is_traced(x: Any) -> bool:
    return isinstance(x, jax.core.Tracer)


def _of_job(error: Exception) -> Exception:
    """The job's own error, if it has failed: its class says what has happened."""
    try:
        jobs.current().session.check()
    except SlipstreamError as failed:
        return failed
    text = str(error)
    return ValueError(text) if text.startswith("INVALID_ARGUMENT") else error
