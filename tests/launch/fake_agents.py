"""A job whose agents are no processes: the tests say what agents send, and what the clock shows."""

from __future__ import annotations

import io
import os
import selectors
from typing import Any

from slipstream.launch.agent_pool import AgentPool
from slipstream.launch.agents import Agent, Destination, Remote
from slipstream.launch.deadlines import Deadlines
from slipstream.launch.ending import Ending
from slipstream.launch.hosts import Host, place
from slipstream.launch.options import JobOptions
from slipstream.launch.output import Console, RankOutputs
from slipstream.launch.ranks import Ranks
from slipstream.launch.reducer_agents import ReducerAgents
from slipstream.launch.wire import AgentMessages, Spec, SpecRank


class FakeProcess:
    """Stands in for an agent's process, and ends with code 255."""

    def __init__(self) -> None:
        self._reader, writer = os.pipe2(os.O_NONBLOCK)
        self.stdin = open(writer, "wb", buffering=0)  # noqa: SIM115
        self.stdout = self.stderr = None
        self.terminated = False

    def told(self) -> list[int]:
        """The kinds of the frames that were posted since the last call."""
        try:
            return [kind for kind, _, _ in AgentMessages(preamble=False).feed(os.read(self._reader, 65536))]
        except BlockingIOError:
            return []

    def send_signal(self, _: int) -> None:
        """It does not stop."""

    def terminate(self) -> None:
        self.terminated = True

    def wait(self, _: float) -> int:
        return 255

    def close(self) -> None:
        self.stdin.close()
        os.close(self._reader)


class FakeJob:
    """Two ranks each on host a, which is this machine, and on host b; and on demand a reducer on host c."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.options = JobOptions(["train"], place(4, [Host("a", 2), Host("b", 2)]), "/", **options)
        self.told: list[tuple[int, str]] = []  # what others are told of ranks that ended
        self.processes: list[FakeProcess] = []
        self._err = io.BytesIO()
        self.deadlines = Deadlines(lambda: self.now)
        self.selector = selectors.DefaultSelector()
        console = Console(io.BytesIO(), self._err, prefix=True, timestamps=False)
        outputs = RankOutputs(console, None)
        for rank in range(4):
            outputs.add(rank)
        self.pool = AgentPool(self.selector, console, b"")
        self.ending = Ending(self.pool, self.deadlines)
        self.ranks = Ranks(
            self.options,
            outputs,
            console,
            self.ending,
            self.deadlines,
            tell_others=lambda rank, how: self.told.append((rank, how)),
        )
        self.reducers = ReducerAgents(self.pool, console, self.ending, self.deadlines, limit=30.0)
        self.here, self.there = self.agent("a", 0, 1), self.agent("b", 2, 3)
        self.ranks.agents += [self.here, self.there]

    def agent(self, name: str, *ranks: int) -> Agent:
        process: Any = FakeProcess()
        self.processes.append(process)
        spec = Spec(["train"], "/", {}, False, [SpecRank(rank, {}) for rank in ranks])
        destination = Destination(name, name, None if name == "a" else Remote())
        agent = Agent(destination, spec, process, self.selector)
        self.pool.agents.append(agent)
        return agent

    def said(self) -> list[str]:
        """The launcher's lines since the last call."""
        lines = self._err.getvalue().decode().splitlines()
        self._err.seek(0)
        self._err.truncate()
        return [line.removeprefix("slipstream: ") for line in lines]

    def hear(self, agent: Agent, *frames: bytes) -> None:
        """The agent sends these."""
        for kind, rank, payload in agent.hear(b"".join(frames)):
            self.ranks.on_frame(agent, kind, rank, payload)

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.deadlines.expire()

    def close(self) -> None:
        for process in self.processes:
            process.close()
        self.selector.close()
