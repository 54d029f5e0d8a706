"""The ranks of a job, as their agents tell of them: output, start, end and failure."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.launch import wire
from slipstream.launch.agents import Agent
from slipstream.launch.blame import named
from slipstream.launch.deadlines import Deadlines
from slipstream.launch.ending import Ending
from slipstream.launch.first_cause import FirstCause
from slipstream.launch.hosts import shown_names
from slipstream.launch.late_ranks import StartWatch, Stragglers
from slipstream.launch.options import JobOptions
from slipstream.launch.output import Console, RankOutputs
from slipstream.launch.processes import how_it_ended
from slipstream.launch.tracebacks import Tracebacks

__all__ = ["Ranks"]


class Ranks:
    """Shows what the ranks print, and ends the job when one fails that it cannot go on without (an `AgentListener`)."""

    def __init__(
        self,
        options: JobOptions,
        outputs: RankOutputs,
        console: Console,
        ending: Ending,
        deadlines: Deadlines,
        tell_others: Callable[[int, str], None],
        heartbeat: float = 10.0,
    ) -> None:
        """``tell_others(rank, how)`` is called when a rank has ended: others may wait for it in init.

        ``heartbeat``: of the ranks, in seconds.
        """
        self.agents: list[Agent] = []
        self.finished: set[int] = set()  # ranks that ended with code 0 before the job was ended
        names = shown_names(one.host for one in options.placed)
        hosts = {one.rank: names[one.host] for one in options.placed}
        self.first_cause = FirstCause(ending, deadlines, hosts, heartbeat)
        self.tracebacks = Tracebacks(outputs, ending, deadlines)
        self.start_watch = StartWatch(self.agents, console, ending, deadlines, options.start_timeout)
        self._stragglers = Stragglers(self.agents, console, ending, deadlines)
        self._options = options
        self._size = len(options.placed)
        self._console = console
        self._outputs = outputs
        self._ending = ending
        self._tell_others = tell_others
        self._lost: set[int] = set()  # ranks that the job goes on without
        self._ended: set[int] = set()  # of whose end this has heard; an agent may have read of more

    @property
    def open(self) -> bool:
        """Whether any of their agents is still read."""
        return any(agent.open for agent in self.agents)

    def check_agents(self) -> None:
        """Once none is read: an agent that is gone without its last word has lost its ranks."""
        for agent in self.agents:
            if not agent.done and self._ending.failed is None:
                self.on_lost(agent)

    # ---- what the agents say ----

    def on_frame(self, agent: Agent, kind: int, rank: int, payload: bytes) -> None:
        """Takes a rank's output, start or end."""
        if kind in (wire.OUT, wire.ERR):
            self._outputs.feed(rank, kind == wire.ERR, payload)
        elif kind == wire.STARTED:
            self._started()
        elif kind == wire.FAILED:
            self._ended.add(rank)
            self._failed(agent, rank, 127, payload.decode(errors="replace"))
        elif kind == wire.REPORT:
            self.first_cause.report(rank, payload)
            self.tracebacks.report(rank, payload)
        elif kind == wire.EXITED:
            self._exited(agent, rank, wire.CODE.unpack(payload)[0])
        elif kind == wire.DONE:
            agent.hang_up()

    def on_malformed(self, agent: Agent, error: ValueError) -> None:
        """The agent does not speak the protocol."""
        self._console.say(f"host {agent.name}: its agent breaks the protocol: {error}")
        self._ending.fail(1)

    def on_lost(self, agent: Agent) -> None:
        """The agent, or the connection to it, is gone before it said that its processes are."""
        left = agent.ranks - agent.ended - self._lost
        if self._options.min_np is not None and not left:
            return  # all of it has been said
        if not self._ending.begun:
            lost = f"lost {named(sorted(left))}" if agent.started else f"{named(sorted(left))} did not start"
            self._console.say(f"host {agent.name}: {agent.how_it_ended()}; {lost}")
            if agent.noise and not agent.started:
                self._console.say(f"host {agent.name}: it printed {agent.noise[-500:]!r}")
            if self._goes_on_without(left):
                return
        self._ending.fail(1)

    # ---- what becomes of them ----

    def _started(self) -> None:
        if sum(len(agent.started) for agent in self.agents) < self._size:
            return
        if self.start_watch.all_started() and self._options.verbose:
            self._console.say(f"ranks started: {self._size} of {self._size}")

    def _exited(self, agent: Agent, rank: int, code: int) -> None:
        how = "finished (exit code 0)" if code == 0 else how_it_ended(code)
        self._ended.add(rank)
        self._tell_others(rank, how)
        if code != 0:
            self._failed(agent, rank, code if code > 0 else 128 - code, how)
            return
        if self._ending.failed is None:
            self.finished.add(rank)
            self.first_cause.finished(rank)
        if self._all_ended():
            self.first_cause.all_ended()
        else:
            self._stragglers.watch()

    def _failed(self, agent: Agent, rank: int, code: int, how: str) -> None:
        if self._ending.begun:
            return  # it ended because the job does
        self._outputs.flush(rank)
        if self._goes_on_without({rank}, f"rank {rank} on host {agent.name} {how}"):
            return
        self.first_cause.failed(rank, code, how, self._outputs.tail(rank))
        if self._all_ended():
            self.first_cause.all_ended()

    def _all_ended(self) -> bool:
        return all(agent.ranks <= self._ended for agent in self.agents)

    def _goes_on_without(self, ranks: set[int], what: str = "") -> bool:
        """Whether enough ranks are left, now that these are lost."""
        self._lost |= ranks
        left, least = self._size - len(self._lost), self._options.min_np
        if least is None or left < least:
            return False
        self.tracebacks.show(ranks)
        self.first_cause.forget(ranks)
        told = f"{what}; " if what else ""
        self._console.say(f"{told}the job goes on with {left} of {self._size} ranks (--min-np {least})")
        return True
