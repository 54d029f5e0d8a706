"""Runs a job: an agent on each host starts its ranks; the launcher shows their output and ends them together.

One thread, one selector, beside the store's thread. Whatever ends the launcher closes its pipes to the
agents, and an agent whose pipe closes kills everything it started: that is what makes orphans impossible.

`AgentPool` reads the agents and gives what they say to `Ranks` or to `ReducerAgents`; `Ending` ends them all.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import shutil
from pathlib import Path

from slipstream.base.files import raise_file_limit
from slipstream.base.settings import Settings
from slipstream.comm.rendezvous.discovery import bind_addresses, is_local_host
from slipstream.comm.rendezvous.store_server import StoreServer
from slipstream.launch.agent_pool import AgentPool
from slipstream.launch.agents import Destination, Remote
from slipstream.launch.blame import named
from slipstream.launch.causes import advice, explained
from slipstream.launch.deadlines import Deadlines
from slipstream.launch.ending import Ending
from slipstream.launch.environment import passed_on
from slipstream.launch.hosts import Placed, shown_names
from slipstream.launch.no_horovod import horovod_cure
from slipstream.launch.options import JobOptions
from slipstream.launch.output import RankOutputs, standard_console
from slipstream.launch.processes import adopt_orphans, keep_standard_streams
from slipstream.launch.ranks import Ranks
from slipstream.launch.reducer_agents import ReducerAgents
from slipstream.launch.reducers import reducer_variables, users_secret
from slipstream.launch.signals import SignalWatch
from slipstream.launch.specs import JobSpecs, check_outputs
from slipstream.launch.torch_rendezvous import master_port

__all__ = ["run_job"]


def run_job(options: JobOptions) -> int:
    """Runs the job to its end and returns the exit code to leave with.

    0 if every rank returned 0; the code of the rank that failed first (128 + signal if one ended it); 128 + signal
    after a signal to this process (130: Ctrl-C); 1 when a host could not be reached or did not start its ranks in
    time. Raises ValueError for options that cannot work, OSError when the store cannot listen or no reducer starts.
    """
    keep_standard_streams()
    adopt_orphans()
    raise_file_limit()
    with contextlib.ExitStack() as resources:
        return _Launcher(options, resources).run()


class _Launcher:
    """One job from its start to its end."""

    def __init__(self, options: JobOptions, resources: contextlib.ExitStack) -> None:
        """``resources``: what closes all that the job holds, its processes first."""
        self._options = options
        settings = Settings.from_environment(
            passed_on(os.environ, remote=False) | options.env
        )  # as ranks read them
        self._console = standard_console(prefix=options.prefix, timestamps=options.timestamps)
        self._outputs = RankOutputs(self._console, options.output_dir)
        resources.callback(self._outputs.close)
        for placed in options.placed:
            self._outputs.add(placed.rank)
        hosts = dict.fromkeys([one.host for one in options.placed] + list(options.reducer_hosts))
        self._local = {host: is_local_host(host) for host in hosts}
        check_outputs(options, settings, self._local)
        secret = secrets.token_bytes(32)
        bind = bind_addresses(options.interface, one_host=all(self._local.values()))
        store = StoreServer(bind, secret, settings.job, again=True, encrypt=settings.encrypt)
        resources.callback(store.close)
        first = self._local[options.placed[0].host]
        port = master_port(first)
        jax_port = master_port(first, but=port)
        names = shown_names(hosts)
        self._specs = JobSpecs(options, settings, self._local, names, store.address, port, jax_port, secret)
        self._remote = Remote(
            options.ssh_command, options.ssh_port, options.ssh_identity_file, options.start_timeout
        )

        self._selector = resources.enter_context(selectors.DefaultSelector())
        self._deadlines = Deadlines()
        self._pool = AgentPool(self._selector, self._console, secret)
        self._ending = Ending(self._pool, self._deadlines)
        self._ranks = Ranks(
            options,
            self._outputs,
            self._console,
            self._ending,
            self._deadlines,
            tell_others=store.rank_ended,
            heartbeat=settings.heartbeat,
        )
        self._reducers = ReducerAgents(
            self._pool, self._console, self._ending, self._deadlines, limit=options.start_timeout / 2
        )
        signals = SignalWatch(self._selector, self._ending.interrupt, self._pool.check)
        resources.callback(signals.close)
        resources.callback(self._ending.close)

    def run(self) -> int:
        """Starts everything, waits for the end of it, and says what was wrong; returns the exit code."""
        self._start_ranks(self._reducer_variables())
        while self._ranks.open:
            self._turn()
        self._ranks.check_agents()
        self._ending.finish()
        while self._pool.open:
            self._turn()
        self._console.settle()
        self._console.say_what_was_lost()
        self._tell_cause()
        return self._ending.exit_code

    def _turn(self) -> None:
        for key, events in self._selector.select(self._deadlines.wait()):
            if key.fd in self._selector.get_map():
                key.data(key.fd, events)
        self._deadlines.expire()

    # ---- start ----

    def _reducer_variables(self) -> dict[str, str]:
        """What tells the ranks of the reducers that run, and of those that are started here for this job."""
        options = self._options
        if options.reducers:
            return reducer_variables(options.reducers, users_secret())
        if not options.reducer_hosts:
            return {}
        for host in options.reducer_hosts:
            address = self._specs.reducer_address(host)
            self._reducers.start(self._destination(host), self._specs.of_reducer(host), address)
        while not self._ending.interrupts and not self._reducers.settled:
            self._turn()
        found = self._reducers.found()
        if not found and not self._ending.interrupts:
            raise OSError("--reducers auto: no reducer could be started")
        return reducer_variables(found, self._specs.secret)

    def _start_ranks(self, reducers: dict[str, str]) -> None:
        hosts: dict[str, list[Placed]] = {}
        for placed in self._options.placed:
            hosts.setdefault(placed.host, []).append(placed)
        self._ranks.start_watch.begin()
        for host, placed_here in hosts.items():
            if self._ending.interrupts:
                break
            spec = self._specs.of_ranks(host, placed_here, reducers)
            if self._options.verbose:
                self._say_where(host, placed_here)
            agent = self._pool.start(self._destination(host), spec, self._ranks)
            self._ranks.agents.append(agent)

    def _destination(self, host: str) -> Destination:
        remote = None if self._local[host] else self._remote
        return Destination(host, self._specs.names[host], remote)

    def _say_where(self, host: str, placed: list[Placed]) -> None:
        way = "here" if self._local[host] else f"through {self._remote.program}"
        ranks = named([one.rank for one in placed])
        self._console.say(f"host {self._specs.names[host]}: {ranks}, started {way}")

    # ---- end ----

    def _tell_cause(self) -> None:
        """Says at the very end what has brought the job down: no output of other ranks comes after it."""
        if self._ending.interrupted_by:
            self._ranks.tracebacks.show()
            ended = "" if self._pool.abandoned else "; all its ranks have ended"
            self._console.say(f"the job was interrupted ({self._ending.interrupted_by}){ended}")
            return
        cause = self._ranks.first_cause.found
        if cause is None:
            self._ranks.tracebacks.show()
            return
        host = next(one.host for one in self._options.placed if one.rank == cause.rank)
        options, local = self._options, self._local[host]
        program = shutil.which(options.argv[0], path=options.env.get("PATH"))
        folder = Path(options.cwd) if local else None
        finished = self._ranks.finished - self._ranks.first_cause.session_failed
        cure = advice(cause, finished, program if local else None) or horovod_cure(
            cause.error, options.argv, folder, asked=options.horovod
        )
        tail = self._outputs.tail(cause.rank)
        traceback = self._ranks.tracebacks.of(cause.rank)
        others = self._ranks.tracebacks.others(cause.rank)
        for text in explained(cause, self._specs.names[host], tail, cure, traceback, others):
            self._console.say(text)
