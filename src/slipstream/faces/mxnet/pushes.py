"""Operations that MXNet's engine runs: a call returns at once, and MXNet orders them with what it computes.

A call takes its place in a line, whose operations all ranks start in one order (native/mxnet). So arrays may become
ready in another order on each rank. Where an operation fails, its arrays carry the error: MXNet raises it once, for
whoever waits first for one of them or for what is computed from them.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from typing import Any

import mxnet
from mxnet.libinfo import find_lib_path

from slipstream import _core
from slipstream.base.log import Log
from slipstream.comm.collectives.native_calls import handle_of
from slipstream.comm.membership.failures import last_words
from slipstream.comm.membership.group import Group
from slipstream.comm.membership.job import Job
from slipstream.faces.horovod.process_sets import ProcessSet

__all__ = ["CALLS", "drain", "push_all_reduce", "push_broadcast"]

CALLS = "calls"
"""The line of what programs call: all ranks call these in one order."""

_ALL_REDUCE, _BROADCAST = 1, 4  # as slipstream.h has them
_NAIVE = "NaiveEngine"  # MXNet's engine that runs everything in the calling thread
_log = Log("slipstream")
_lock = threading.RLock()  # a signal's handler may call an operation, too
_lines: dict[tuple[int, str], _core.MxnetLine] = {}  # by the group's id
_jobs: dict[int, Job] = {}  # by the same
_usable: bool | None = None


def push_all_reduce(
    inputs: Sequence[Any],
    results: Sequence[Any],
    op: int,
    name: str | None,
    scales: tuple[float, float],
    process_set: ProcessSet,
    line: str = CALLS,
    asks: bool = True,
) -> bool:
    """Has MXNet's engine reduce each array into its result, which may be itself; ``op``: the engine's code.

    False, and nothing is done, where that is not possible: it has to wait then. ``line``: what all ranks start in one
    order. ``asks``: the ranks compare shapes, dtypes and arguments before it begins, and the job goes on where they
    differ; else that ends the job.
    """
    return _push(process_set, line, name, inputs, results, _ALL_REDUCE, op, 0, *scales, asks)


def push_broadcast(
    array: Any, result: Any, root: int, name: str | None, process_set: ProcessSet, line: str = CALLS
) -> bool:
    """The same for a broadcast from ``root``, its place in the set."""
    return _push(process_set, line, name, [array], [result], _BROADCAST, 0, root, 1.0, 1.0, True)


def _push(
    process_set: ProcessSet,
    line: str,
    name: str | None,
    inputs: Sequence[Any],
    results: Sequence[Any],
    collective: int,
    op: int,
    root: int,
    prescale: float,
    postscale: float,
    asks: bool,
) -> bool:
    group: Group = process_set.group
    found = _lines.get((group.id, line)) or _new_line(group, line)
    if found is None or not inputs:
        return False
    if not all(isinstance(one, mxnet.nd.NDArray) for one in inputs):
        return False
    handles = [one.handle.value for one in inputs]
    targets = handles if results is inputs else [one.handle.value for one in results]
    what = f"{_KINDS[collective]} {name!r}" if name else ""
    return found.push(handles, targets, collective, op, root, prescale, postscale, what, asks)


_KINDS = {_ALL_REDUCE: "allreduce", _BROADCAST: "broadcast"}


def _new_line(group: Group, line: str) -> _core.MxnetLine | None:
    """None where operations have to wait: without MXNet's threads, and beside reducers, which serve one group alone."""
    if not _can_push() or group.job.reducers.for_choices(group) is not None:
        return None
    with _lock:
        key = group.id, line
        if key not in _lines:
            own = group.beside(f"mxnet {line}")
            if group.id not in _jobs:
                _jobs[group.id] = group.job
                group.job.before_leaving(drain)
                group.job.when_left(lambda: _leave(group.id))
            _lines[key] = _core.MxnetLine(handle_of(own))
        return _lines[key]


def _leave(group_id: int) -> None:
    with _lock:
        _jobs.pop(group_id, None)
        for key in [one for one in _lines if one[0] == group_id]:
            _lines.pop(key).leave()


def _can_push() -> bool:
    global _usable
    with _lock:
        if _usable is None:
            problem = _core.mxnet_prepare(find_lib_path()[0])
            if problem:
                _log.warning("operations wait for MXNet instead of running in its engine: %s", problem)
            _usable = not problem and os.environ.get("MXNET_ENGINE_TYPE") != _NAIVE
            if _usable:
                atexit.register(_drain_at_exit)  # before MXNet's own, which ends its engine
                os.register_at_fork(before=drain)
        return _usable


def drain() -> None:
    """Waits for all operations that this process has pushed: each ends, well or with an error.

    Before a fork, as the child has none of the threads that run them, and before the job, or MXNet's engine, ends.
    """
    while not _core.mxnet_drained(0.1):  # a signal's handler may raise between two looks
        pass


def _drain_at_exit() -> None:
    words = last_words()
    if words:  # the others learn why this rank calls nothing any more, before anything waits for them
        for job in {*_jobs.values()}:
            job.session.abandon(words)
    drain()
