"""The stager of this process, and its thread: made when something is staged for the first time."""

from __future__ import annotations

import atexit
import os
import threading

from slipstream import _core
from slipstream.comm.membership.group import Group
from slipstream.staging.calls import Ends
from slipstream.staging.device import Memory
from slipstream.staging.stager import Stager
from slipstream.staging.transfers import StagedWork, Transfer

__all__ = ["settle", "stage"]

_stager: Stager | None = None
_thread: threading.Thread | None = None
_making = threading.Lock()


def stage(transfer: Transfer) -> StagedWork:
    """Begins an operation.

    The group of ``transfer`` must be used for nothing that does not go through here, and by all its ranks alike. Its
    memory may be used again once the current queue of the caller has passed `StagedWork.wait`.
    """
    global _stager, _thread
    if _stager is None:
        with _making:
            if _stager is None:
                stager = Stager()
                _thread = threading.Thread(target=stager.run, name="slipstream staging", daemon=True)
                _thread.start()
                _stager = stager
    return _stager.stage(transfer)


def settle(memory: Memory, group: Group, ends: Ends | None, name: str, *, writes: bool) -> None:
    """Before the current queue copies from memory for the call ``name`` (``writes``: and to it, when that is done).

    The host waits until all that earlier calls with the same group and ends do to it is on its way, and the current
    queue for the rest. Aborted if one of another group, peer or tag is under way: that ends the session.
    """
    if _stager is not None:
        _stager.settle(memory, group, ends, name, writes)


@atexit.register
def _close() -> None:
    """Before the jobs are left, which fails what the engine still has; its buffers stay with the stager."""
    if _stager is not None and _thread is not None:
        _stager.close()
        _thread.join(timeout=5.0)


def _forget_after_fork() -> None:
    """A forked child has not got the thread."""
    global _stager, _thread, _making
    if _stager is not None:
        _core.leak(_stager)
    _stager, _thread, _making = None, None, threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)
