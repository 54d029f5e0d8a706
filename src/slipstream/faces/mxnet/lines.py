"""Lines: what all ranks start in one order, whether MXNet's engine runs it or the call waits (native/mxnet).

Each operation takes a place in a line when it is called. Each process set has a line for what programs call, and one
for each trainer and each key of a store: their order is their own.
"""

from __future__ import annotations

import atexit
import os
import threading

from slipstream import _core
from slipstream.base.log import Log
from slipstream.comm.collectives.native_calls import handle_of
from slipstream.comm.membership.failures import last_words
from slipstream.comm.membership.group import Group
from slipstream.comm.membership.job import Job

__all__ = ["CALLS", "drain", "line_for", "line_of"]

CALLS = "calls"
"""The line of what programs call."""

_log = Log("slipstream")
_lock = threading.RLock()  # a signal's handler may call an operation, too
_lines: dict[tuple[int, str], _core.MxnetLine] = {}  # by the group's id
_jobs: dict[int, Job] = {}  # by the same
_watched = False


def line_of(group: Group, name: str) -> _core.MxnetLine:
    """The line of this name of the group's ranks; made at the first call."""
    return _lines.get((group.id, name)) or _new_line(group, name)


def line_for(group: Group, name: str, takes_reducers: bool = False) -> _core.MxnetLine | None:
    """The line that all-reduces and broadcasts go by.

    None where reducers serve the program's group: they serve one alone. ``takes_reducers``: they serve this line from
    then on. All ranks make it at the same place among their operations.
    """
    if group.job.reducers.for_choices(group) is not None and not takes_reducers:
        return None
    return _lines.get((group.id, name)) or _new_line(group, name, takes_reducers)


def _new_line(group: Group, name: str, takes_reducers: bool = False) -> _core.MxnetLine:
    with _lock:
        _watch()
        key = group.id, name
        if key not in _lines:
            own = group.beside(f"mxnet {name}")
            if takes_reducers and group.job.reducers.for_choices(group) is not None:
                group.give_reducers(own)
            if group.id not in _jobs:
                _jobs[group.id] = group.job
                group.job.before_leaving(lambda: drain("the process left the job"))
                group.job.when_left(lambda: _leave(group.id))
            _lines[key] = _core.MxnetLine(handle_of(own))
        return _lines[key]


def _leave(group_id: int) -> None:
    with _lock:
        _jobs.pop(group_id, None)
        for key in [one for one in _lines if one[0] == group_id]:
            _lines.pop(key).leave()


def _watch() -> None:
    """Has what is under way end before the process forks or ends."""
    global _watched
    if not _watched:
        _watched = True
        atexit.register(_drain_at_exit)  # before MXNet's own, which ends its engine
        os.register_at_fork(before=lambda: drain("the process forked"))


def drain(event: str) -> None:
    """Waits for all operations that MXNet's engine runs for this process: each ends, well or with an error.

    Before a fork, as the child has none of the threads that run them, and before the job, or MXNet's engine, ends.
    ``event``: what waits for it. The program may never look at the results, so errors are told.
    """
    before, _ = _core.mxnet_failures()
    while not _core.mxnet_drained(0.1):  # a signal's handler may raise between two looks
        pass
    count, text = _core.mxnet_failures()
    failed = count - before
    # An exception that ends the program has made them fail, and is told itself.
    if failed > 0 and not last_words():
        what = "1 operation failed that was" if failed == 1 else f"{failed} operations failed that were"
        _log.warning("%s under way when %s. The last: %s", what, event, text)


def _drain_at_exit() -> None:
    words = last_words()
    if words:  # the others learn why this rank calls nothing any more, before anything waits for them
        for job in {*_jobs.values()}:
            job.session.abandon(words)
    drain("the program ended")
