"""A second process beside an agent's: whichever of the two is killed or stopped, the other ends every rank's process.

The guard is the process that the launcher or ssh has started; the agent is its child, in a session of its own. Both
adopt orphans. So when the agent is killed, all that it had started becomes the guard's; and when the guard is killed,
the kernel tells the agent. A child of the agent's wakes a guard that is stopped when the agent ends. Where both are
killed, the launcher comes once more (`sweep`). Few users may make a control group; where there is one, the kernel
kills at once what is in it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from slipstream.launch import control_group
from slipstream.launch.processes import adopt_orphans, die_with_parent, kill_descendants, reap

__all__ = ["guarded"]

_PATIENCE = 12.0  # seconds in which an agent ends by itself, once it is to: it may wait for processes 10 s


def guarded(run: Callable[[], int], group: Path | None = None) -> int:
    """Runs ``run``, an agent, in a child of this process, which has one thread; returns the agent's exit code.

    Nothing that the agent started is left then, nor of the control ``group``. Standard input, which both share, is the
    launcher's hand: when it closes, a stopped agent is woken, and what has not ended in time is killed.
    """
    adopt_orphans()
    own = os.getpid()
    numbers = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    agent = os.fork()
    if agent == 0:
        _be_agent(run, own, numbers)
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    code = _watch(agent, reader)
    control_group.end(group)
    kill_descendants(lambda pid, status: None)
    control_group.end(group)  # now that it is empty
    return code


def _be_agent(run: Callable[[], int], guard: int, blocked: set[signal.Signals]) -> None:
    code = 1
    try:
        os.setsid()
        adopt_orphans()
        die_with_parent(signal.SIGTERM, guard)
        _wake_at_our_end(guard)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        code = run()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(guard, signal.SIGCONT)  # it may be stopped, and shall see our end
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _wake_at_our_end(guard: int) -> None:
    """Starts a process that outlives this one, the agent, by so much that it wakes the guard."""
    agent = os.getpid()
    if os.fork() == 0:  # SIGTERM is blocked here
        try:
            os.closerange(0, 3)
            die_with_parent(signal.SIGTERM, agent)
            signal.sigwait({signal.SIGTERM})
            os.kill(guard, signal.SIGCONT)
        finally:
            os._exit(0)


def _watch(agent: int, reader: int) -> int:
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    poll.register(0, select.POLLRDHUP)
    deadline: float | None = None  # of the agent, once it is to end
    while True:
        wait = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        ready = [fd for fd, _ in poll.poll(wait)]
        told_to_end = reader in ready and _told_to_end(reader)
        if deadline is None and (told_to_end or 0 in ready):
            deadline = time.monotonic() + _PATIENCE
            poll.unregister(0)
            if told_to_end:
                os.kill(agent, signal.SIGTERM)
            os.kill(agent, signal.SIGCONT)
        code = _ended(agent)
        if code is None and deadline is not None and time.monotonic() >= deadline:
            os.kill(agent, signal.SIGKILL)
            code = 128 + signal.SIGKILL
        if code is not None:
            return code


def _told_to_end(reader: int) -> bool:
    """Whether other signals than that of a child's end have come."""
    with contextlib.suppress(BlockingIOError):
        return bool(set(os.read(reader, 4096)) - {signal.SIGCHLD})
    return False


def _ended(agent: int) -> int | None:
    """Reaps; the agent's exit code if it was among the dead."""
    status = dict(reap()[0]).get(agent)
    if status is None:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
