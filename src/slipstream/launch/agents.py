"""The launcher's side of the agents: how each is started, here or through ssh, and what it may say."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from slipstream.launch import wire
from slipstream.launch.outbox import Outbox
from slipstream.launch.reducers import python_path
from slipstream.launch.sweep import mark_of
from slipstream.launch.wire import AgentMessages, Spec, message

__all__ = ["Agent", "Destination", "Remote", "sweep_up"]

_OF_A_RANK = {wire.STARTED, wire.OUT, wire.ERR, wire.EXITED, wire.FAILED, wire.REPORT}
_SWEEP_SECONDS = 10.0
_LAST_SECONDS = 10.0  # for an agent that has closed its pipes to end
_SIZES = {wire.STARTED: wire.PID.size, wire.EXITED: wire.CODE.size, wire.DONE: 0}


@dataclass(frozen=True)
class Remote:
    """How to reach other hosts: ssh or what stands in for it, and its options; ``seconds`` to connect."""

    command: str = "ssh"
    port: int | None = None
    identity_file: str | None = None
    seconds: float = 60.0

    def arguments(self, host: str, remote_command: str) -> list[str]:
        """The whole command that runs ``remote_command`` (for a shell) on ``host``."""
        command = shlex.split(self.command)
        for setting in (
            "BatchMode=yes",
            f"ConnectTimeout={max(1, int(self.seconds))}",
            "ServerAliveInterval=5",
            "ServerAliveCountMax=3",
        ):
            command += ["-o", setting]
        if self.port is not None:
            command += ["-p", str(self.port)]
        if self.identity_file is not None:
            command += ["-i", self.identity_file]
        return [*command, "--", host, remote_command]  # after "--" no host is an option

    @property
    def program(self) -> str:
        """The program's name, for messages."""
        return self.command.split()[0]


@dataclass(frozen=True)
class Destination:
    """A host to start an agent on: how it is reached, what messages call it, and through what, if it is not here."""

    host: str
    name: str
    remote: Remote | None

    def command(self, cwd: str, module: list[str]) -> list[str]:
        """What runs ``module`` there, with its options; ``cwd``: in which folder of another host."""
        if self.remote is None:
            return [*module, "--local"]
        return self.remote.arguments(self.host, _remote_command(module, cwd, os.environ))


class Agent:
    """An agent that was started for a host: its pipes, and what it has said of its ranks so far."""

    def __init__(
        self,
        destination: Destination,
        spec: Spec,
        process: subprocess.Popen[bytes],
        selector: selectors.BaseSelector,
    ) -> None:
        self.destination = destination
        self.name = destination.name
        self.local = destination.remote is None
        self.cwd = spec.cwd
        self.process = process
        self.ranks = {one.rank for one in spec.ranks}
        self.started: set[int] = set()
        self.ended: set[int] = set()
        self.done = False  # it said that every process of its host is gone
        self.broken = False  # it said what no agent says: it is not listened to any more
        self.open: set[int] = set()  # its pipes that are still read
        self._messages = AgentMessages(preamble=True)
        assert process.stdin is not None
        self._outbox = Outbox(process.stdin.fileno(), selector)

    @classmethod
    def start(
        cls,
        destination: Destination,
        spec: Spec,
        *,
        secret: bytes,
        selector: selectors.BaseSelector,
        on_output: Callable[[int, int], None],
    ) -> Agent:
        """Starts one and sends it ``spec``; ValueError if there is no such command.

        ``secret``: the job's, by which a `sweep` finds what is left. ``on_output``: reads a pipe that has something.
        """
        command = destination.command(
            spec.cwd, [sys.executable, "-m", "slipstream.launch.agent", mark_of(secret)]
        )
        env, cwd = dict(os.environ), None
        if destination.remote is None:
            # not where a file of the user's could stand in for a module
            env["PYTHONPATH"], cwd = python_path(env.get("PYTHONPATH", "")), "/"
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # a Ctrl-C at the terminal is the launcher's to pass on
            )
        except OSError as error:
            raise ValueError(f"cannot run {command[0]!r}: {error.strerror}") from None
        agent = cls(destination, spec, process, selector)
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        agent._outbox.add(message(wire.SPEC, 0, spec.pack()))
        for fd in (agent.stdout, agent.stderr):
            os.set_blocking(fd, False)
            agent.open.add(fd)
            selector.register(fd, selectors.EVENT_READ, on_output)
        agent.flush()
        return agent

    # ---- what it says ----

    @property
    def stdout(self) -> int:
        """Where its messages come from."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    @property
    def stderr(self) -> int:
        """Where the complaints of ssh and of the agent itself come from."""
        assert self.process.stderr is not None
        return self.process.stderr.fileno()

    @property
    def noise(self) -> str:
        """What came before its first word: a login shell's greeting, or why there is no agent."""
        return self._messages.noise.decode(errors="replace").strip()

    def how_it_ended(self) -> str:
        """In words, once its pipes are closed: with what exit code it, or the connection to it, has ended."""
        remote = self.destination.remote
        what = "its agent" if remote is None else f"the connection ({remote.program})"
        return f"{what} ended with code {self.process.wait(_LAST_SECONDS)}"

    def hear(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """The messages (kind, rank, payload) that ``data`` completes.

        Raises ValueError, and hears nothing from then on, when one is malformed or speaks of another host's rank.
        """
        if self.broken:
            return []
        try:
            heard = self._messages.feed(data)
            for one in heard:
                self._check(*one)
        except ValueError:
            self.broken = True
            raise
        return heard

    def _check(self, kind: int, rank: int, payload: bytes) -> None:
        if self.done:
            raise ValueError("a message after its last one")
        if kind != wire.DONE and kind not in _OF_A_RANK:
            raise ValueError(f"a message of kind {kind}, which does not exist")
        if len(payload) != _SIZES.get(kind, len(payload)):
            raise ValueError(f"a message of kind {kind} with {len(payload)} bytes")
        if kind == wire.DONE:
            if self.ranks - self.ended:
                raise ValueError(f"it is done, but rank {_numbers(self.ranks - self.ended)} has not ended")
            self.done = True
            return
        if rank not in self.ranks:
            raise ValueError(f"it speaks for rank {rank}, which is not on this host")
        if kind in (wire.EXITED, wire.FAILED):
            if rank in self.ended:
                raise ValueError(f"rank {rank} ended twice")
            self.ended.add(rank)
        elif kind == wire.STARTED:
            self.started.add(rank)

    # ---- what it is told ----

    def post(self, data: bytes) -> None:
        """Sends a short message. May run in a signal handler. If it is gone, the end of its output will tell."""
        assert self.process.stdin is not None
        if not self.process.stdin.closed:
            self._outbox.post(data)

    def flush(self) -> None:
        """Writes what could not be posted, as far as it takes that now."""
        if self._outbox:
            self._outbox.flush()

    def hang_up(self) -> None:
        """Closes our end of its standard input, which makes it kill whatever is left; wakes it if it is stopped."""
        assert self.process.stdin is not None
        if self.local:
            self.process.send_signal(signal.SIGCONT)
        if not self.process.stdin.closed:
            self._outbox.close()
            self.process.stdin.close()

    def terminate(self) -> None:
        """Hangs up, and ends it though it may not look at its standard input: an ssh that still tries does not."""
        self.hang_up()
        self.process.terminate()

    def close(self) -> None:
        """Closes the pipes that were read."""
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def sweep_up(agents: Sequence[Agent], secret: bytes) -> None:
    """Ends what is left on other hosts whose agents are gone without a last word; gives up after some seconds."""
    module = [sys.executable, "-m", "slipstream.launch.sweep"]
    started = []
    for agent in agents:
        remote = agent.destination.remote
        if remote is None or agent.done or agent.broken or not agent.started:
            continue
        sooner = replace(agent.destination, remote=replace(remote, seconds=_SWEEP_SECONDS / 2))
        command = sooner.command(agent.cwd, module)
        with contextlib.suppress(OSError):
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            started.append(process)
            assert process.stdin is not None
            process.stdin.write(secret.hex().encode() + b"\n")
            process.stdin.close()
    deadline = time.monotonic() + _SWEEP_SECONDS
    for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))


def _numbers(ranks: Sequence[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


def _remote_command(module: list[str], cwd: str, environ: Mapping[str, str]) -> str:
    paths = environ.get("PYTHONPATH")
    assign = f"PYTHONPATH={shlex.quote(paths)} " if paths else ""
    return f"cd {shlex.quote(cwd)} && {assign}exec {shlex.join(module)}"
