"""Runs a job: an agent on each host starts its ranks; the launcher shows their output and ends them together.

One thread, one selector, beside the store's thread. Whatever ends the launcher closes its pipes to the
agents, and an agent whose pipe closes kills everything it started: that is what makes orphans impossible.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from slipstream.base.files import raise_file_limit
from slipstream.base.settings import Settings
from slipstream.base.timelines import file_of, objection
from slipstream.comm.rendezvous.discovery import advertised_addresses, bind_addresses, is_local_host
from slipstream.comm.rendezvous.store import StoreServer
from slipstream.launch import wire
from slipstream.launch.agents import Agent, Remote, sweep_up
from slipstream.launch.causes import Causes, Failure, advice, how_and_why, named
from slipstream.launch.environment import laid_over, passed_on, rank_variables
from slipstream.launch.hosts import Placed, shown_names
from slipstream.launch.master import address_towards, master_address, master_port
from slipstream.launch.output import Console, RankOutput
from slipstream.launch.processes import (
    adopt_orphans,
    how_it_ended,
    keep_standard_streams,
    kill_descendants,
)
from slipstream.launch.reducers import StartedReducer, reducer_spec, reducer_variables, users_secret
from slipstream.launch.wire import Spec, SpecRank, frame

__all__ = ["JobOptions", "run_job"]

_GRACE = 5.0  # seconds between asking ranks to end and killing them
_LINGER = 10.0  # seconds from the end of a rank to the first word about those that go on
_SETTLE = 2.5  # seconds to learn which rank failed first, when one says that it lost another
_LAST = 10.0  # seconds for agents to report that all is gone
_CHUNK = 1 << 18


@dataclass(frozen=True)
class JobOptions:
    """How to run a job; ``placed`` holds its ranks in order, times are in seconds.

    ``reducers``: host and port of those that run already. ``reducer_hosts``: where to start one for this job.
    ``min_np``: the job goes on while as many ranks are left (None: it ends with the first that fails).
    """

    argv: list[str]
    placed: list[Placed]
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    output_dir: Path | None = None
    start_timeout: float = 60.0
    min_np: int | None = None
    interface: str | None = None
    prefix: bool = True
    timestamps: bool = False
    verbose: bool = False
    ssh_command: str = "ssh"
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    reducers: tuple[tuple[str, int], ...] = ()
    reducer_hosts: tuple[str, ...] = ()


def run_job(options: JobOptions) -> int:
    """Runs the job to its end and returns the exit code to leave with.

    0 if every rank returned 0; the code of the rank that failed first (128 + signal if one ended it); 130
    after an interrupt; 1 when a host could not be reached or did not start its ranks in time. Raises
    ValueError for options that cannot work, OSError when the store cannot listen.
    """
    keep_standard_streams()
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
        out, err = (open(fd, "wb", buffering=0, closefd=False) for fd in (1, 2))  # noqa: SIM115
        self.console = Console(out, err, prefix=options.prefix, timestamps=options.timestamps)
        self.remote = Remote(
            options.ssh_command, options.ssh_port, options.ssh_identity_file, options.start_timeout
        )
        self.selector = selectors.DefaultSelector()
        self.agents: list[Agent] = []
        self.by_fd: dict[int, Agent] = {}
        self.outputs: dict[tuple[int, bool], RankOutput] = {}
        self.exit_code: int | None = None
        self.lost: set[int] = set()  # ranks that the job goes on without
        self.finished: set[int] = set()  # ranks that ended with code 0 before the job was ended
        self.interrupts = 0
        self.start_deadline: float | None = time.monotonic() + options.start_timeout
        self.end_deadline: float | None = None
        self.reducer_deadline: float | None = None
        self.settle_deadline: float | None = None
        self.linger_deadline: float | None = None
        self.linger = _LINGER
        self.causes = Causes()
        self.cause: Failure | None = None  # why the ranks are ended
        self.over = False  # no rank is left
        self.names = shown_names([one.host for one in options.placed] + list(options.reducer_hosts))
        self.told: dict[str, str] = {}  # variables of the ranks about reducers
        self.secret = b""
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
        self._check_timeline(local)
        secret = self.secret = secrets.token_bytes(32)
        bind = bind_addresses(options.interface, one_host=all(local.values()))
        self.server = StoreServer(bind, secret, self.settings.job, again=True, encrypt=self._encrypts())
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
            if options.verbose:
                self._say_where(host, local[host], placed_here)
            self._start_agent(host, local[host], placed_here, spec)
        while any(agent.open for agent in self.agents if agent.reducer is None):
            self._turn()
        self._end_reducers()
        for agent in self.agents:
            if not agent.done and self.exit_code is None and agent.reducer is None:
                self._lost(agent)
        self.console.settle()
        self.console.say_what_was_lost()
        self._tell_cause()
        if self.interrupts:
            return 130
        return self.exit_code or 0

    def _check_timeline(self, local: dict[str, bool]) -> None:
        """ValueError if a rank of this host cannot write its timeline: else the job would fail only in init."""
        template = self.options.env.get("SLIPSTREAM_TIMELINE", self.settings.timeline)
        if template is None:
            return
        for placed in self.options.placed:
            path = file_of(template, placed.rank)
            why = objection(os.path.join(self.options.cwd, path)) if path and local[placed.host] else ""
            if why:
                text = f"rank {placed.rank} cannot write its timeline {path}: {why}"
                raise ValueError(f"--timeline (SLIPSTREAM_TIMELINE): {text}")

    def _encrypts(self) -> bool:
        """What the ranks are told, which `JobOptions.env` may say otherwise than the environment."""
        name = "SLIPSTREAM_ENCRYPT"
        given = {name: self.options.env[name]} if name in self.options.env else None
        return (Settings.from_environment(given) if given else self.settings).encrypt

    def _say_where(self, host: str, local: bool, placed: list[Placed]) -> None:
        way = "here" if local else f"through {self.remote.program}"
        self.console.say(f"host {self.names[host]}: {named([one.rank for one in placed])}, started {way}")

    def _store_for(self, host: str, local: bool) -> str:
        assert self.server is not None
        address, port = self.server.address
        if self.settings.address and not local:
            address = self.settings.address[0]
        elif address in ("0.0.0.0", "::"):
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
        env["SLIPSTREAM_HOST_NAME"] = self.names[host]
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
        remote = None if local else self.remote
        agent = Agent.start(
            host, self.names[host], remote, placed, spec, self.selector, self._on_agent, self.secret, reducer
        )
        self.agents.append(agent)
        self.by_fd |= dict.fromkeys(agent.open, agent)

    # ---- the loop ----

    def _turn(self) -> None:
        given = (self.start_deadline, self.end_deadline, self.reducer_deadline, self.settle_deadline)
        deadlines = [d for d in (*given, self.linger_deadline) if d is not None]
        wait = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        for key, events in self.selector.select(wait):
            if key.fd in self.selector.get_map():
                key.data(key.fd, events)
        now = time.monotonic()
        if self.start_deadline is not None and now >= self.start_deadline:
            self.start_deadline = None
            self._start_failed()
        if self.settle_deadline is not None and now >= self.settle_deadline:
            self._settle()
        if self.linger_deadline is not None and now >= self.linger_deadline:
            self._say_who_lingers()
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
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._close_pipe(agent, fd)
        elif fd == agent.stderr:
            self._say_for(agent, data)
        else:
            self._hear(agent, data)

    def _hear(self, agent: Agent, data: bytes) -> None:
        try:
            for kind, rank, payload in agent.hear(data):
                self._handle(agent, kind, rank, payload)
        except ValueError as error:
            if agent.reducer is not None:
                self._reducer_lost(agent, f"its agent sent {error}")
            else:
                self.console.say(f"host {agent.name}: its agent breaks the protocol: {error}")
                self._fail(1)
            agent.hang_up()
            agent.process.terminate()  # what speaks so may not look at its standard input either

    def _say_for(self, agent: Agent, data: bytes) -> None:
        """Shows what ssh or the agent itself complains about."""
        for line in data.decode(errors="replace").splitlines():
            self.console.say(f"host {agent.name}: {line}")

    def _close_pipe(self, agent: Agent, fd: int) -> None:
        self.selector.unregister(fd)
        agent.open.discard(fd)
        if not agent.open:
            agent.hang_up()
            if not agent.done:
                self._lost(agent)

    def _handle(self, agent: Agent, kind: int, rank: int, payload: bytes) -> None:
        if agent.reducer is not None and kind != wire.DONE:
            self._handle_reducer(agent, agent.reducer, kind, payload)
        elif kind in (wire.OUT, wire.ERR):
            self.outputs[rank, kind == wire.ERR].feed(payload)
        elif kind == wire.STARTED:
            if sum(len(a.started) for a in self.agents if a.reducer is None) == self.size:
                waited, self.start_deadline = self.start_deadline is not None, None
                if self.options.verbose and waited:  # else it has been said
                    self.console.say(f"ranks started: {self.size} of {self.size}")
        elif kind == wire.FAILED:
            self._rank_failed(agent, rank, 127, payload.decode(errors="replace"))
        elif kind == wire.REPORT:
            self.causes.report(rank, payload)
        elif kind == wire.EXITED:
            (code,) = wire.CODE.unpack(payload)
            if self.server is not None:  # the others may wait for it in init
                self.server.rank_ended(rank, "finished (exit code 0)" if code == 0 else how_it_ended(code))
            if code != 0:
                self._rank_failed(agent, rank, code if code > 0 else 128 - code, how_it_ended(code))
                return
            if self.exit_code is None:
                self.finished.add(rank)
            if self.settle_deadline is not None and self._all_ended():
                self._settle()
            elif self.linger_deadline is None and not self._all_ended():
                self.linger_deadline = time.monotonic() + self.linger
        elif kind == wire.DONE:
            agent.hang_up()

    def _handle_reducer(self, agent: Agent, reducer: StartedReducer, kind: int, payload: bytes) -> None:
        if kind in (wire.OUT, wire.ERR):
            reducer.feed(kind == wire.ERR, payload)
            for text in reducer.warnings:
                self.console.say(f"reducer on host {agent.name}: {text}")
            reducer.warnings.clear()
        elif kind == wire.FAILED:
            self._reducer_lost(agent, payload.decode(errors="replace"))
        elif kind == wire.EXITED:
            self._reducer_lost(agent, how_it_ended(wire.CODE.unpack(payload)[0]))

    # ---- the end ----

    def _say_who_lingers(self) -> None:
        """Other ranks have finished. Those that go on may have work to do, or may be stopped: nobody else can tell."""
        self.linger_deadline = None
        agents = [agent for agent in self.agents if agent.reducer is None and agent.ranks - agent.ended]
        if self._ending() or not agents:
            return
        ranks = ", ".join(
            f"{', '.join(map(str, sorted(agent.ranks - agent.ended)))} (host {agent.name})"
            for agent in agents
        )
        self.console.say(
            f"other ranks have finished; still running: rank {ranks}. Is a process stopped? Ctrl-C ends the job"
        )
        self.linger *= 6
        self.linger_deadline = time.monotonic() + self.linger

    def _rank_failed(self, agent: Agent, rank: int, code: int, how: str) -> None:
        if self.exit_code is not None or self.interrupts:
            return  # it ended because the job does
        for error in (False, True):
            self.outputs[rank, error].flush()
        if self._goes_on_without({rank}, f"rank {rank} on host {agent.name} {how}"):
            return
        self.causes.failed(rank, code, how, self.outputs[rank, True].tail)
        if self.causes.certain or self._all_ended():
            self._settle()
        elif self.settle_deadline is None:
            self.settle_deadline = time.monotonic() + _SETTLE

    def _all_ended(self) -> bool:
        return all(agent.ranks <= agent.ended for agent in self.agents if agent.reducer is None)

    def _settle(self) -> None:
        """Decides which rank failed first, and ends the others."""
        self.cause = self.causes.first()
        assert self.cause is not None
        self._fail(self.cause.code)

    def _tell_cause(self) -> None:
        """Says at the very end what has brought the job down: no output of other ranks comes after it."""
        cause = self.cause
        if cause is None or self.interrupts:
            return
        host = next(one.host for one in self.options.placed if one.rank == cause.rank)
        what = f"rank {cause.rank} on host {self.names[host]} {how_and_why(cause)}"
        tail = self.outputs[cause.rank, True].tail
        if cause.error:
            lines = [line.encode(errors="replace") for line in cause.error.splitlines()]
            self.console.say(f"{what}:\n{_indented(lines)}")
            program = shutil.which(self.options.argv[0], path=self.options.env.get("PATH"))
            more = advice(cause, self.finished, program if is_local_host(host) else None)
            if more:
                self.console.say(more)
            return
        self.console.say(what)
        if tail:
            self.console.say(f"the last lines of its standard error:\n{_indented(tail)}")

    def _goes_on_without(self, ranks: set[int], what: str = "") -> bool:
        """Whether enough ranks are left, now that these are lost."""
        self.lost |= ranks
        left, least = self.size - len(self.lost), self.options.min_np
        if least is None or left < least:
            return False
        told = f"{what}; " if what else ""
        self.console.say(f"{told}the job goes on with {left} of {self.size} ranks (--min-np {least})")
        return True

    def _fail(self, code: int) -> None:
        self.settle_deadline = None
        if self.exit_code is None:
            self.exit_code = code
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        """Asks all ranks to end; the agents kill what is left after the grace."""
        self.start_deadline = self.settle_deadline = None
        if self.end_deadline is None:
            self.end_deadline = time.monotonic() + _GRACE + _LAST
        for agent in self.agents:
            agent.post(frame(wire.SIGNAL, 0, wire.SIGNAL_BODY.pack(number, _GRACE)))

    def _lost(self, agent: Agent) -> None:
        """An agent's connection is gone before it said that its processes are."""
        if agent.reducer is not None:
            if not agent.reducer.why and not self._ending():
                what = "its agent" if agent.local else f"the connection ({self.remote.program})"
                self._reducer_lost(agent, f"{what} ended with code {agent.process.wait(_LAST)}")
            return
        left = sorted({one.rank for one in agent.placed} - agent.ended - self.lost)
        if self.options.min_np is not None and not left:
            return  # all of it has been said
        if self.exit_code is None and not self.interrupts:
            code = agent.process.wait(_LAST)
            what = "its agent" if agent.local else f"the connection ({self.remote.program})"
            self.console.say(f"host {agent.name}: {what} ended with code {code}; lost {named(left)}")
            if agent.noise and not agent.started:
                self.console.say(f"host {agent.name}: it printed {agent.noise[-500:]!r}")
            if self._goes_on_without(set(left)):
                return
        self._fail(1)

    def _ending(self) -> bool:
        return self.over or self.exit_code is not None or self.interrupts > 0

    def _reducer_lost(self, agent: Agent, how: str) -> None:
        """The job goes on without it; whatever is left of it ends."""
        assert agent.reducer is not None
        if agent.reducer.why or self._ending():
            return
        agent.reducer.why = how
        self.console.say(f"warning: the reducer on host {agent.name}: {how}; the job goes on without it")
        agent.hang_up()

    def _end_reducers(self) -> None:
        """Ends those that were started for this job, once no rank is left."""
        self.over = True
        self.end_deadline = time.monotonic() + _LAST
        for agent in self.agents:
            agent.hang_up()
        while any(agent.open for agent in self.agents):
            self._turn()

    def _start_failed(self) -> None:
        late = [agent for agent in self.agents if len(agent.started) < len(agent.placed)]
        for agent in late:
            ranks = named([one.rank for one in agent.placed if one.rank not in agent.started])
            seconds = self.options.start_timeout
            self.console.say(
                f"host {agent.name} did not start {ranks} within {seconds:g} s (--start-timeout)"
            )
        self._fail(1)
        for agent in late:
            agent.hang_up()
            agent.process.terminate()  # an ssh that is still trying does not look at its standard input

    def _abandon(self) -> None:
        """Agents that do not answer any more: hang up, and stop listening."""
        for agent in self.agents:
            if agent.open:
                self.console.say(f"host {agent.name} does not report that its processes ended")
            agent.hang_up()
            for fd in list(agent.open):
                self.selector.unregister(fd)
            agent.open.clear()

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
            if agent.waiting:
                agent.flush()
            if agent.open and agent.process.poll() is not None:
                self._drain(agent)

    def _drain(self, agent: Agent) -> None:
        """The agent (or its ssh) is gone, though others may hold its pipes: takes what is there, hangs up."""
        agent.hang_up()
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
                agent.post(frame(wire.KILL))

    def close(self) -> None:
        """Leaves nothing behind: hangs up all agents and kills what is still below this process."""
        for agent in self.agents:
            agent.hang_up()
        deadline = time.monotonic() + (0.5 if self.interrupts > 1 else 2.0)
        for agent in self.agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.process.wait(max(0.0, deadline - time.monotonic()))
        if self.interrupts < 2:
            sweep_up(self.agents, self.remote, self.secret)
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
