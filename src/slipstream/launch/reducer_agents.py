"""The reducers that the launcher starts for a job, through an agent on each of their hosts."""

from __future__ import annotations

from slipstream.launch import wire
from slipstream.launch.agent_pool import AgentPool
from slipstream.launch.agents import Agent, Destination
from slipstream.launch.deadlines import Deadlines
from slipstream.launch.ending import Ending
from slipstream.launch.output import Console
from slipstream.launch.processes import how_it_ended
from slipstream.launch.reducers import StartedReducer
from slipstream.launch.wire import Spec

__all__ = ["ReducerAgents"]


class ReducerAgents:
    """Starts reducers and shows their warnings. The job goes on without one that ends (an `AgentListener`)."""

    def __init__(
        self, pool: AgentPool, console: Console, ending: Ending, deadlines: Deadlines, limit: float
    ) -> None:
        """``limit``: seconds for a reducer to start."""
        self._pool = pool
        self._console = console
        self._ending = ending
        self._limit = limit
        self._deadline = deadlines.add(self._give_up)
        self._reducers: dict[Agent, StartedReducer] = {}

    def start(self, destination: Destination, spec: Spec, address: str) -> None:
        """Starts one, which the ranks are to reach at ``address``."""
        agent = self._pool.start(destination, spec, self)
        self._reducers[agent] = StartedReducer(destination.host, address)
        self._deadline.set(self._limit)

    @property
    def settled(self) -> bool:
        """Whether it is known of each if it runs."""
        return all(one.settled for one in self._reducers.values())

    def found(self) -> list[tuple[str, int]]:
        """Where the ranks reach those that run; waits for no others any more."""
        self._deadline.clear()
        running = [one for one in self._reducers.values() if not one.why]
        return [(one.address, one.port) for one in running if one.port is not None]

    def _give_up(self) -> None:
        for agent, reducer in self._reducers.items():
            if not reducer.settled:
                self._lose(agent, f"it did not start within {self._limit:g} s")
                agent.terminate()

    def _lose(self, agent: Agent, how: str) -> None:
        """The job goes on without it; whatever is left of it ends."""
        reducer = self._reducers[agent]
        if reducer.why or self._ending.begun:
            return
        reducer.why = how
        self._console.say(f"warning: the reducer on host {agent.name}: {how}; the job goes on without it")
        agent.hang_up()

    # ---- what the agents say ----

    def on_frame(self, agent: Agent, kind: int, _rank: int, payload: bytes) -> None:
        """Takes the reducer's output and its end."""
        if kind in (wire.OUT, wire.ERR):
            reducer = self._reducers[agent]
            reducer.feed(kind == wire.ERR, payload)
            for text in reducer.warnings:
                self._console.say(f"reducer on host {agent.name}: {text}")
            reducer.warnings.clear()
        elif kind == wire.FAILED:
            self._lose(agent, payload.decode(errors="replace"))
        elif kind == wire.EXITED:
            self._lose(agent, how_it_ended(wire.CODE.unpack(payload)[0]))
        elif kind == wire.DONE:
            agent.hang_up()

    def on_malformed(self, agent: Agent, error: ValueError) -> None:
        """The agent does not speak the protocol."""
        self._lose(agent, f"its agent sent {error}")

    def on_lost(self, agent: Agent) -> None:
        """Its agent, or the connection to it, is gone."""
        if not self._reducers[agent].why and not self._ending.begun:
            self._lose(agent, agent.how_it_ended())
