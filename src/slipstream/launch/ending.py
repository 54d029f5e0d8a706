"""How a job is brought to its end, and with which exit code."""

from __future__ import annotations

import os
import signal

from slipstream.launch import wire
from slipstream.launch.agent_pool import AgentPool
from slipstream.launch.deadlines import Deadlines
from slipstream.launch.wire import message

__all__ = ["Ending"]

_GRACE = 5.0  # seconds between asking ranks to end and killing them
_LAST = 10.0  # seconds for agents to report that all is gone


class Ending:
    """Asks all agents to end their ranks, then to kill them, and gives up on those that do not answer."""

    def __init__(self, pool: AgentPool, deadlines: Deadlines) -> None:
        self.failed: int | None = None  # the exit code of what went wrong first
        self.interrupts = 0
        self._interrupted = 0  # the exit code of the first signal
        self._over = False  # no rank is left
        self._pool = pool
        self._deadline = deadlines.add(pool.abandon)

    @property
    def begun(self) -> bool:
        """Whether ranks end because the job does."""
        return self._over or self.failed is not None or self.interrupts > 0

    @property
    def exit_code(self) -> int:
        """What the launcher returns: 0 if all went well."""
        return self._interrupted or self.failed or 0

    @property
    def interrupted_by(self) -> str:
        """The name of the first signal to this process; "" without one."""
        return signal.Signals(self._interrupted - 128).name if self._interrupted else ""

    def fail(self, code: int) -> None:
        """Ends the job because something went wrong; the first ``code`` counts."""
        if self.failed is None:
            self.failed = code
        self._ask(signal.SIGTERM)

    def interrupt(self, number: int) -> None:
        """Ends the job at a signal: gently at the first, at once at the second; the third ends this process.

        Runs in a signal handler: it only posts.
        """
        self.interrupts += 1
        self._interrupted = self._interrupted or 128 + number
        if self.interrupts > 2:
            os._exit(self._interrupted)  # the agents see our pipes close
        if self.interrupts == 1:
            self._ask(number if number == signal.SIGINT else signal.SIGTERM)
        else:
            self._deadline.set(_LAST)
            self._pool.post(message(wire.KILL))

    def finish(self) -> None:
        """No rank is left: ends the agents of reducers."""
        self._over = True
        self._deadline.set(_LAST)
        self._pool.hang_up()

    def _ask(self, number: int) -> None:
        """Asks all ranks to end; the agents kill what is left after the grace."""
        if self._deadline.when is None:
            self._deadline.set(_GRACE + _LAST)
        self._pool.post(message(wire.SIGNAL, 0, wire.SIGNAL_BODY.pack(number, _GRACE)))

    def close(self) -> None:
        """Leaves no process behind; in a hurry after a second interrupt."""
        self._pool.close(limit=0.5 if self.interrupts > 1 else 2.0, sweep=lambda: self.interrupts < 2)
