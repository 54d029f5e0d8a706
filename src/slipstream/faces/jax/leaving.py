"""A process leaves a job when JAX has done all that the program has dispatched.

JAX returns from a compiled function before that has run. A program need not wait for results that it does not read, but
other ranks may need this one's part in them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref

import jax

from slipstream.comm.membership.failures import last_words
from slipstream.comm.membership.job import Job

__all__ = ["complete_before_leaving"]

_known: weakref.WeakSet[Job] = weakref.WeakSet()  # the jobs that this holds for
_has_ended = False  # JAX's part of the process


def complete_before_leaving(job: Job) -> None:
    """From now on ``job`` is left only when all computations that were dispatched before are done."""
    if job not in _known:
        _known.add(job)
        job.before_leaving(_complete)


def _complete() -> None:
    if _has_ended:
        return
    # The operations' own errors are told by whoever reads the results. An array may be deleted meanwhile.
    with contextlib.suppress(RuntimeError):
        jax.block_until_ready([one for one in jax.live_arrays() if not one.is_deleted()])
    # Results that nobody has any more: what this thread has dispatched to a device runs in that order.
    for device in jax.local_devices():
        with contextlib.suppress(RuntimeError):
            jax.block_until_ready(jax.device_put(0, device) + 1)


os.register_at_fork(after_in_child=_known.clear)  # JAX does not work in a child, and the child is in no job


@atexit.register  # later than JAX does: so this runs before JAX lets go of its devices
def _end() -> None:
    global _has_ended
    try:
        if len(_known) and not last_words():  # an exception that ends the program is told at once
            _complete()
    finally:
        _has_ended = True
