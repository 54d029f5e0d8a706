"""All agents of a job in the launcher's loop: started, read, and ended together."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Callable
from typing import Protocol

from slipstream.launch import control_group
from slipstream.launch.agents import Agent, Destination, sweep_up
from slipstream.launch.output import Console
from slipstream.launch.processes import kill_descendants
from slipstream.launch.sweep import mark_of
from slipstream.launch.wire import Spec

__all__ = ["AgentListener", "AgentPool"]

_CHUNK = 1 << 18


class AgentListener(Protocol):
    """Learns what an agent says and how it ends."""

    def on_frame(self, agent: Agent, kind: int, rank: int, payload: bytes) -> None:
        """The agent has sent a message, which is well-formed."""

    def on_malformed(self, agent: Agent, error: ValueError) -> None:
        """The agent has sent what is no message; it is ended after this call."""

    def on_lost(self, agent: Agent) -> None:
        """The agent's pipes are closed, before it said that its processes are gone."""


class AgentPool:
    """Starts agents, gives their messages to a listener each, and shows what ssh or they themselves complain about."""

    def __init__(self, selector: selectors.BaseSelector, console: Console, secret: bytes) -> None:
        self.agents: list[Agent] = []
        self.abandoned = False  # some of them were given up while they had not reported their end
        self._selector = selector
        self._console = console
        self._secret = secret
        self._by_pipe: dict[int, tuple[Agent, AgentListener]] = {}

    def start(self, destination: Destination, spec: Spec, listener: AgentListener) -> Agent:
        """Starts one and sends it ``spec``; ValueError if there is no such command."""
        agent = Agent.start(
            destination, spec, secret=self._secret, selector=self._selector, on_output=self._read
        )
        self.agents.append(agent)
        self._by_pipe |= dict.fromkeys(agent.open, (agent, listener))
        return agent

    @property
    def open(self) -> bool:
        """Whether any agent is still read."""
        return any(agent.open for agent in self.agents)

    # ---- what they say ----

    def _read(self, fd: int, _events: int) -> None:
        agent, listener = self._by_pipe[fd]
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._close_pipe(fd)
        elif fd == agent.stderr:
            for line in data.decode(errors="replace").splitlines():
                self._console.say(f"host {agent.name}: {line}")
        else:
            try:
                for kind, rank, payload in agent.hear(data):
                    listener.on_frame(agent, kind, rank, payload)
            except ValueError as error:
                listener.on_malformed(agent, error)
                agent.terminate()

    def _close_pipe(self, fd: int) -> None:
        agent, listener = self._by_pipe[fd]
        self._selector.unregister(fd)
        agent.open.discard(fd)
        if not agent.open:
            agent.hang_up()
            if not agent.done:
                listener.on_lost(agent)

    def check(self) -> None:
        """Looks, after a signal, for agents that have ended, and for what could not be posted."""
        for agent in self.agents:
            agent.flush()
            if agent.open and agent.process.poll() is not None:
                self._drain(agent)

    def _drain(self, agent: Agent) -> None:
        """The agent (or its ssh) is gone, though others may hold its pipes: takes what is there, hangs up."""
        agent.hang_up()
        for fd in list(agent.open):
            while fd in agent.open and _readable(fd):
                self._read(fd, selectors.EVENT_READ)
            if fd in agent.open:
                self._close_pipe(fd)

    # ---- what they are told ----

    def post(self, data: bytes) -> None:
        """Sends a short message to all. May run in a signal handler."""
        for agent in self.agents:
            agent.post(data)

    def hang_up(self) -> None:
        """Closes the standard input of all, which makes them kill whatever is left."""
        for agent in self.agents:
            agent.hang_up()

    def abandon(self) -> None:
        """Hangs up, and listens to none of them any more: those that have not ended do not answer."""
        for agent in self.agents:
            if agent.open:
                self.abandoned = True
                self._console.say(f"host {agent.name} does not report that its processes ended")
            agent.hang_up()
            for fd in list(agent.open):
                self._selector.unregister(fd)
            agent.open.clear()

    def close(self, *, limit: float, sweep: Callable[[], bool]) -> None:
        """Leaves nothing behind: gives all ``limit`` seconds to end, and kills what is still below this process.

        ``sweep``, asked after that time: also end what agents that are gone have left on other hosts, which may take
        seconds?
        """
        self.hang_up()
        deadline = time.monotonic() + limit
        for agent in self.agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.process.wait(max(0.0, deadline - time.monotonic()))
        if sweep():
            sweep_up(self.agents, self._secret)
        kill_descendants(lambda pid, status: None)
        if any(agent.destination.remote is None and not agent.done for agent in self.agents):
            for group in control_group.find(mark_of(self._secret)):
                control_group.end(group)
        for agent in self.agents:
            agent.close()


def _readable(fd: int) -> bool:
    with selectors.DefaultSelector() as one:
        one.register(fd, selectors.EVENT_READ)
        return bool(one.select(0))
