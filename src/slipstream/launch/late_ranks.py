"""Ranks that are late: those that do not start in time, and those that go on when others have finished."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.launch.agents import Agent
from slipstream.launch.blame import named
from slipstream.launch.deadlines import Deadlines
from slipstream.launch.ending import Ending
from slipstream.launch.output import Console

__all__ = ["StartWatch", "Stragglers"]

_LINGER = 10.0  # seconds from the end of a rank to the first word about those that go on


class StartWatch:
    """Ends the job when ranks do not start within ``limit`` seconds."""

    def __init__(
        self, agents: Sequence[Agent], console: Console, ending: Ending, deadlines: Deadlines, limit: float
    ) -> None:
        self._agents = agents
        self._console = console
        self._ending = ending
        self._limit = limit
        self._deadline = deadlines.add(self._too_late)

    def begin(self) -> None:
        """The time runs from now."""
        self._deadline.set(self._limit)

    def all_started(self) -> bool:
        """All ranks have started; whether that is news."""
        waited = self._deadline.when is not None
        self._deadline.clear()
        return waited and not self._ending.begun

    def _too_late(self) -> None:
        if self._ending.begun:
            return
        late = [agent for agent in self._agents if agent.started < agent.ranks]
        for agent in late:
            ranks = named(sorted(agent.ranks - agent.started))
            self._console.say(
                f"host {agent.name} did not start {ranks} within {self._limit:g} s (--start-timeout)"
            )
        self._ending.fail(1)
        for agent in late:
            agent.terminate()


class Stragglers:
    """Says which ranks go on when others have finished.

    They may have work to do, or may be stopped: nobody else can tell.
    """

    def __init__(
        self, agents: Sequence[Agent], console: Console, ending: Ending, deadlines: Deadlines
    ) -> None:
        self._agents = agents
        self._console = console
        self._ending = ending
        self._deadline = deadlines.add(self._say)
        self._wait = _LINGER

    def watch(self) -> None:
        """A rank has finished, and others have not."""
        if self._deadline.when is None:
            self._deadline.set(self._wait)

    def _say(self) -> None:
        late = [agent for agent in self._agents if agent.ranks - agent.ended]
        if self._ending.begun or not late:
            return
        ranks = ", ".join(
            f"{', '.join(map(str, sorted(agent.ranks - agent.ended)))} (host {agent.name})" for agent in late
        )
        self._console.say(
            f"other ranks have finished; still running: rank {ranks}. Is it stopped, or does it wait "
            "for one that has ended? Ctrl-C ends the job"
        )
        self._wait *= 6
        self._deadline.set(self._wait)
