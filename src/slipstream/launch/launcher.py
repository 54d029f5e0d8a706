"""Runs a job: an agent on each host starts its ranks; the launcher shows their output and ends them together.

One thread, one selector, beside the store's thread. Whatever ends the launcher closes its pipes to the
agents, and an agent whose pipe closes kills everything it started: that is what makes orphans impossible.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from slipstream.base.settings import Settings
from slipstream.comm.discovery import advertised_addresses, bind_address, is_local_host
from slipstream.comm.store import StoreServer
from slipstream.launch import wire
from slipstream.launch.environment import laid_over, passed_on, rank_variables
from slipstream.launch.hosts import Placed
from slipstream.launch.master import address_towards, master_address, master_port
from slipstream.launch.output import Console, RankOutput
from slipstream.launch.processes import adopt_orphans, how_it_ended, kill_descendants, raise_file_limit
from slipstream.launch.reducers import (
    StartedReducer,
    python_path,
    reducer_spec,
    reducer_variables,
    users_secret,
)
from slipstream.launch.wire import Frames, Spec, SpecRank, frame

__all__ = ["JobOptions", "run_job"]

_GRACE = 5.0  # seconds between asking ranks to end and killing them
_LAST = 10.0  # seconds for agents to report that all is gone
_CHUNK = 1 << 18


@dataclass(frozen=True)
class JobOptions:
    """How to run a job; ``placed`` holds its ranks in order, times are in seconds.

    ``reducers``: host and port of those that run already. ``reducer_hosts``: where to start one for this job.
    """

    argv: list[str]
    placed: list[Placed]
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    output_dir: Path | None = None
    start_timeout: float = 60.0
    interface: str | None = None
    prefix: bool = True
    timestamps: bool = False
    ssh_command: str = "ssh"
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    reducers: tuple[tuple[str, int], ...] = ()
    reducer_hosts: tuple[str, ...] = ()


@dataclass(eq=False)
class _Agent:
    host: str
    local: bool
    placed: list[Placed]
    process: subprocess.Popen[bytes]
    outbox: bytearray
    frames: Frames = field(default_factory=lambda: Frames(preamble=True))
    noise: RankOutput | None = None
    started: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    done: bool = False
    open: set[int] = field(default_factory=set)
    reducer: StartedReducer | None = None  # instead of ranks

    @property
    def stdin(self) -> int:
        assert self.process.stdin is not None
        return self.process.stdin.fileno()


def run_job(options: JobOptions) -> int:
    """Runs the job to its end and returns the exit code to leave with.

    0 if every rank returned 0; the code of the rank that failed first (128 + signal if one ended it); 130
    after an interrupt; 1 when a host could not be reached or did not start its ranks in time. Raises
    ValueError for options that cannot work, OSError when the store cannot listen.
    """
    adopt_orphans()
    raise_file_limit()
    job = _Job(options)
    try:
        return job.run()
    finally:
        job.close()


class _Job:
    def __init__(self, options: JobOptions) -> None:
        self.options = options
        self.size = len(options.placed)
        self.settings = Settings.from_environment(passed_on(os.environ, remote=False))
        self.console = Console(
            sys.stdout.buffer, sys.stderr.buffer, prefix=options.prefix, timestamps=options.timestamps
        )
        self.selector = selectors.DefaultSelector()
        self.agents: list[_Agent] = []
        self.by_fd: dict[int, _Agent] = {}
        self.outputs: dict[tuple[int, bool], RankOutput] = {}
        self.exit_code: int | None = None
        self.interrupts = 0
        self.start_deadline: float | None = time.monotonic() + options.start_timeout
        self.end_deadline: float | None = None
        self.reducer_deadline: float | None = None
        self.over = False  # no rank is left
        self.told: dict[str, str] = {}  # variables of the ranks about reducers
        self.server: StoreServer | None = None
        self.wake: tuple[socket.socket, socket.socket] | None = None
        self.old_handlers: dict[int, object] = {}

    # ---- start ----

    def run(self) -> int:
        options = self.options
        hosts: dict[str, list[Placed]] = {}
        for placed in options.placed:
            hosts.setdefault(placed.host, []).append(placed)
            for error in (False, True):
                self.outputs[placed.rank, error] = RankOutput(
                    placed.rank, error, self.console, options.output_dir
                )
        local = {host: is_local_host(host) for host in (*hosts, *options.reducer_hosts)}
        secret = secrets.token_bytes(32)
        bind = bind_address(options.interface, one_host=all(local.values()))
        self.server = StoreServer(bind, secret, self.settings.job)
        first = options.placed[0].host
        port = master_port(local[first])
        self._watch_signals()
        if options.reducers:
            self.told = reducer_variables(options.reducers, users_secret())
        elif options.reducer_hosts:
            self._start_reducers(first, local, secret)
        for host, placed_here in hosts.items():
            if self.interrupts:
                break
            address = master_address(first, host, local, options.interface)
            master = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
            spec = self._spec(host, local[host], placed_here, secret, master)
            self._start_agent(host, local[host], placed_here, spec)
        while any(agent.open for agent in self.agents if agent.reducer is None):
            self._turn()
        self._end_reducers()
        for agent in self.agents:
            if not agent.done and self.exit_code is None and agent.reducer is None:
                self._lost(agent)
        self.console.settle()
        if self.interrupts:
            return 130
        return self.exit_code or 0

    def _store_for(self, host: str, local: bool) -> str:
        assert self.server is not None
        address, port = self.server.address
        if address in ("0.0.0.0", "::"):
            if local:
                address = "127.0.0.1" if address == "0.0.0.0" else "::1"
            else:
                address = address_towards(host) or advertised_addresses(self.options.interface)[0]
        return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    def _spec(
        self, host: str, local: bool, placed: list[Placed], secret: bytes, master: dict[str, str]
    ) -> Spec:
        env = laid_over(passed_on(os.environ, remote=not local) | master, self.told)
        env["SLIPSTREAM_STORE"] = self._store_for(host, local)
        env["SLIPSTREAM_SECRET"] = secret.hex()
        env["SLIPSTREAM_START_TIMEOUT"] = f"{self.options.start_timeout:g}"
        if self.options.interface is not None:
            env["SLIPSTREAM_INTERFACE"] = self.options.interface
        env |= self.options.env
        ranks = [SpecRank(one.rank, rank_variables(one, self.size)) for one in placed]
        return Spec(self.options.argv, self.options.cwd, env, not local, ranks)

    def _start_reducers(self, first: str, local: dict[str, bool], secret: bytes) -> None:
        """Starts those of `JobOptions.reducer_hosts`, and waits until each listens or cannot."""
        options = self.options
        for host in options.reducer_hosts:
            secret_of = {"SLIPSTREAM_REDUCER_SECRET": secret.hex()}
            env = laid_over(passed_on(os.environ, remote=not local[host]), secret_of)
            if options.interface is not None:
                env["SLIPSTREAM_INTERFACE"] = options.interface
            loopback = all(local.values()) and options.interface is None
            spec = reducer_spec(env, local=local[host], loopback=loopback)
            address = master_address(host, first, local, options.interface)
            if options.interface is not None and local[host]:
                address = advertised_addresses(options.interface)[0]
            self._start_agent(host, local[host], [], spec, StartedReducer(host, address))
        limit = options.start_timeout / 2
        self.reducer_deadline = time.monotonic() + limit
        started = [agent.reducer for agent in self.agents if agent.reducer is not None]
        while not self.interrupts and not all(reducer.settled for reducer in started):
            self._turn()
        self.reducer_deadline = None
        self.start_deadline = time.monotonic() + options.start_timeout
        found = [(one.address, one.port) for one in started if one.port is not None and not one.why]
        if not found and not self.interrupts:
            raise ValueError("--reducers auto: no reducer could be started")
        self.told = reducer_variables(found, secret)

    def _start_agent(
        self,
        host: str,
        local: bool,
        placed: list[Placed],
        spec: Spec,
        reducer: StartedReducer | None = None,
    ) -> None:
        module = [sys.executable, "-m", "slipstream.launch.agent"]
        env = dict(os.environ)
        if local:
            command, cwd = (
                [*module, "--local"],
                "/",
            )  # not where a file of the user's could stand in for a module
            env["PYTHONPATH"] = python_path(env.get("PYTHONPATH", ""))
        else:
            command, cwd = [*self._ssh(), host, self._remote_command(module)], None
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on
            )
        except OSError as error:
            raise ValueError(f"cannot run {command[0]!r}: {error.strerror}") from None
        agent = _Agent(host, local, placed, process, bytearray(frame(wire.SPEC, 0, spec.pack())))
        agent.noise = RankOutput(-1, True, self.console, None)
        agent.reducer = reducer
        self.agents.append(agent)
        os.set_blocking(agent.stdin, False)
        assert process.stdout is not None
        assert process.stderr is not None
        for pipe in (process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)
            agent.open.add(pipe.fileno())
            self.by_fd[pipe.fileno()] = agent
            self.selector.register(pipe.fileno(), selectors.EVENT_READ, self._on_agent)
        self._flush(agent)

    def _ssh(self) -> list[str]:
        options = self.options
        seconds = max(1, int(options.start_timeout))
        command = shlex.split(options.ssh_command)
        for setting in (
            "BatchMode=yes",
            f"ConnectTimeout={seconds}",
            "ServerAliveInterval=5",
            "ServerAliveCountMax=3",
        ):
            command += ["-o", setting]
        if options.ssh_port is not None:
            command += ["-p", str(options.ssh_port)]
        if options.ssh_identity_file is not None:
            command += ["-i", options.ssh_identity_file]
        return command

    def _remote_command(self, module: list[str]) -> str:
        paths = os.environ.get("PYTHONPATH")
        assign = f"PYTHONPATH={shlex.quote(paths)} " if paths else ""
        return f"cd {shlex.quote(self.options.cwd)} && {assign}exec {shlex.join(module)}"

    # ---- the loop ----

    def _turn(self) -> None:
        given = (self.start_deadline, self.end_deadline, self.reducer_deadline)
        deadlines = [d for d in given if d is not None]
        wait = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        for key, events in self.selector.select(wait):
            if key.fd in self.selector.get_map():
                key.data(key.fd, events)
        now = time.monotonic()
        if self.start_deadline is not None and now >= self.start_deadline:
            self.start_deadline = None
            self._start_failed()
        if self.end_deadline is not None and now >= self.end_deadline:
            self.end_deadline = None
            self._abandon()
        if self.reducer_deadline is not None and now >= self.reducer_deadline:
            self.reducer_deadline = None
            for agent in self.agents:
                if agent.reducer is not None and not agent.reducer.settled:
                    self._reducer_lost(agent, f"it did not start within {self.options.start_timeout / 2:g} s")
                    agent.process.terminate()  # an ssh that is still trying does not look at its standard input

    def _on_agent(self, fd: int, _: int) -> None:
        agent = self.by_fd[fd]
        assert agent.process.stdout is not None
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._close_pipe(agent, fd)
            return
        if fd != agent.process.stdout.fileno():
            self._say_for(agent, data)
            return
        try:
            for kind, rank, payload in agent.frames.feed(data):
                self._handle(agent, kind, rank, payload)
        except (ValueError, KeyError) as error:
            self.console.say(f"host {agent.host}: its agent talks nonsense: {error}")
            if agent.reducer is None:
                self._fail(1)
            self._hang_up(agent)

    def _say_for(self, agent: _Agent, data: bytes) -> None:
        """Shows what ssh or the agent itself complains about."""
        for line in data.decode(errors="replace").splitlines():
            self.console.say(f"host {agent.host}: {line}")

    def _close_pipe(self, agent: _Agent, fd: int) -> None:
        self.selector.unregister(fd)
        agent.open.discard(fd)
        if not agent.open:
            self._hang_up(agent)
            if not agent.done:
                self._lost(agent)

    def _handle(self, agent: _Agent, kind: int, rank: int, payload: bytes) -> None:
        if agent.reducer is not None and kind != wire.DONE:
            self._handle_reducer(agent, agent.reducer, kind, payload)
        elif kind in (wire.OUT, wire.ERR):
            self.outputs[rank, kind == wire.ERR].feed(payload)
        elif kind == wire.STARTED:
            agent.started.add(rank)
            if sum(len(a.started) for a in self.agents) == self.size:
                self.start_deadline = None
        elif kind == wire.FAILED:
            agent.ended.add(rank)
            self._rank_failed(agent, rank, 127, payload.decode(errors="replace"))
        elif kind == wire.EXITED:
            (code,) = wire.CODE.unpack(payload)
            agent.ended.add(rank)
            if code != 0:
                self._rank_failed(agent, rank, code if code > 0 else 128 - code, how_it_ended(code))
        elif kind == wire.DONE:
            agent.done = True
            self._hang_up(agent)

    def _handle_reducer(self, agent: _Agent, reducer: StartedReducer, kind: int, payload: bytes) -> None:
        if kind in (wire.OUT, wire.ERR):
            reducer.feed(kind == wire.ERR, payload)
            for text in reducer.warnings:
                self.console.say(f"reducer on host {agent.host}: {text}")
            reducer.warnings.clear()
        elif kind == wire.FAILED:
            self._reducer_lost(agent, payload.decode(errors="replace"))
        elif kind == wire.EXITED:
            self._reducer_lost(agent, how_it_ended(wire.CODE.unpack(payload)[0]))

    def _hang_up(self, agent: _Agent) -> None:
        """Closes our end of the agent's standard input, which makes it kill whatever is left."""
        assert agent.process.stdin is not None
        if not agent.process.stdin.closed:
            if agent.stdin in self.selector.get_map():
                self.selector.unregister(agent.stdin)
            agent.outbox.clear()
            agent.process.stdin.close()

    def _post(self, agent: _Agent, data: bytes) -> None:
        """Sends a short frame. May run in a signal handler, so it leaves a write in progress to the loop."""
        assert agent.process.stdin is not None
        if agent.process.stdin.closed:
            return
        if agent.outbox:
            agent.outbox += data
            return
        try:
            os.write(agent.stdin, data)  # whole or not at all, as it is below PIPE_BUF
        except BlockingIOError:
            agent.outbox += data
        except OSError:  # it is gone: the end of its output will tell
            pass

    def _flush(self, agent: _Agent) -> None:
        try:
            while agent.outbox:
                del agent.outbox[: os.write(agent.stdin, agent.outbox[:65536])]
        except BlockingIOError:
            pass
        except OSError:  # it is gone: the end of its output will tell
            agent.outbox.clear()
        if bool(agent.outbox) != (agent.stdin in self.selector.get_map()):
            if agent.outbox:
                self.selector.register(agent.stdin, selectors.EVENT_WRITE, lambda *_: self._flush(agent))
            else:
                self.selector.unregister(agent.stdin)

    # ---- the end ----

    def _rank_failed(self, agent: _Agent, rank: int, code: int, how: str) -> None:
        if self.exit_code is not None or self.interrupts:
            return  # it ended because the job does
        for error in (False, True):
            self.outputs[rank, error].flush()
        self.console.say(f"rank {rank} on host {agent.host} {how}")
        tail = self.outputs[rank, True].tail
        if tail:
            self.console.say(f"the last lines of its standard error:\n{_indented(tail)}")
        self._fail(code)

    def _fail(self, code: int) -> None:
        if self.exit_code is None:
            self.exit_code = code
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        """Asks all ranks to end; the agents kill what is left after the grace."""
        self.start_deadline = None
        if self.end_deadline is None:
            self.end_deadline = time.monotonic() + _GRACE + _LAST
        for agent in self.agents:
            self._post(agent, frame(wire.SIGNAL, 0, wire.SIGNAL_BODY.pack(number, _GRACE)))

    def _lost(self, agent: _Agent) -> None:
        """An agent's connection is gone before it said that its processes are."""
        if agent.reducer is not None:
            if not agent.reducer.why and not self._ending():
                what = (
                    "its agent" if agent.local else f"the connection ({self.options.ssh_command.split()[0]})"
                )
                self._reducer_lost(agent, f"{what} ended with code {agent.process.wait(_LAST)}")
            return
        left = sorted({one.rank for one in agent.placed} - agent.ended)
        if self.exit_code is None and not self.interrupts:
            code = agent.process.wait(_LAST)
            ranks = ", ".join(map(str, left))
            what = "its agent" if agent.local else f"the connection ({self.options.ssh_command.split()[0]})"
            self.console.say(f"host {agent.host}: {what} ended with code {code}; lost rank {ranks}")
            noise = agent.frames.noise.decode(errors="replace").strip()
            if noise and not agent.started:
                self.console.say(f"host {agent.host}: it printed {noise[-500:]!r}")
        self._fail(1)

    def _ending(self) -> bool:
        return self.over or self.exit_code is not None or self.interrupts > 0

    def _reducer_lost(self, agent: _Agent, how: str) -> None:
        """The job goes on without it; whatever is left of it ends."""
        assert agent.reducer is not None
        if agent.reducer.why or self._ending():
            return
        agent.reducer.why = how
        self.console.say(f"warning: the reducer on host {agent.host}: {how}; the job goes on without it")
        self._hang_up(agent)

    def _end_reducers(self) -> None:
        """Ends those that were started for this job, once no rank is left."""
        self.over = True
        self.end_deadline = time.monotonic() + _LAST
        for agent in self.agents:
            self._hang_up(agent)
        while any(agent.open for agent in self.agents):
            self._turn()

    def _start_failed(self) -> None:
        late = [agent for agent in self.agents if len(agent.started) < len(agent.placed)]
        for agent in late:
            ranks = ", ".join(str(one.rank) for one in agent.placed if one.rank not in agent.started)
            seconds = self.options.start_timeout
            self.console.say(
                f"host {agent.host} did not start rank {ranks} within {seconds:g} s (--start-timeout)"
            )
        self._fail(1)
        for agent in late:
            self._hang_up(agent)
            agent.process.terminate()  # an ssh that is still trying does not look at its standard input

    def _abandon(self) -> None:
        """Agents that do not answer any more: hang up, and stop listening."""
        for agent in self.agents:
            if agent.open:
                self.console.say(f"host {agent.host} does not report that its processes ended")
            self._hang_up(agent)
            for fd in list(agent.open):
                self.selector.unregister(fd)
            agent.open.clear()
            agent.done = True

    # ---- signals ----

    def _watch_signals(self) -> None:
        reader, writer = socket.socketpair()
        for end in (reader, writer):
            end.setblocking(False)
        self.wake = reader, writer
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self.old_handlers[number] = signal.signal(number, self._interrupt)
        self.old_handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(reader, selectors.EVENT_READ, self._on_wake)

    def _on_wake(self, _fd: int, _events: int) -> None:
        assert self.wake is not None
        with contextlib.suppress(BlockingIOError):
            self.wake[0].recv(4096)
        for agent in self.agents:
            if agent.outbox:
                self._flush(agent)
            if agent.open and agent.process.poll() is not None:
                self._drain(agent)

    def _drain(self, agent: _Agent) -> None:
        """The agent (or its ssh) is gone, though others may hold its pipes: takes what is there, hangs up."""
        self._hang_up(agent)
        for fd in list(agent.open):
            while fd in agent.open and _readable(fd):
                self._on_agent(fd, selectors.EVENT_READ)
            if fd in agent.open:
                self._close_pipe(agent, fd)

    def _interrupt(self, number: int, _: FrameType | None) -> None:
        """Runs between any two steps of the loop, also while that waits for a stuck terminal: only posts."""
        self.interrupts += 1
        if self.interrupts > 2:
            os._exit(130)  # the agents see our pipes close
        if self.interrupts == 1:
            self._end(number if number == signal.SIGINT else signal.SIGTERM)
        else:
            self.end_deadline = time.monotonic() + _LAST
            for agent in self.agents:
                self._post(agent, frame(wire.KILL))

    def close(self) -> None:
        """Leaves nothing behind: hangs up all agents and kills what is still below this process."""
        for agent in self.agents:
            self._hang_up(agent)
        deadline = time.monotonic() + (0.5 if self.interrupts > 1 else 2.0)
        for agent in self.agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.process.wait(max(0.0, deadline - time.monotonic()))
        kill_descendants(lambda pid, status: None)
        signal.set_wakeup_fd(-1)
        for number, handler in self.old_handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self.wake is not None:
            for end in self.wake:
                end.close()
        for agent in self.agents:
            for pipe in (agent.process.stdout, agent.process.stderr):
                if pipe is not None:
                    pipe.close()
        for output in self.outputs.values():
            output.close()
        self.selector.close()
        if self.server is not None:
            self.server.close()


def _readable(fd: int) -> bool:
    with selectors.DefaultSelector() as one:
        one.register(fd, selectors.EVENT_READ)
        return bool(one.select(0))


def _indented(lines: object) -> str:
    return "\n".join("    " + line.decode(errors="replace") for line in lines)  # type: ignore[attr-defined]
