"""What the agents of a job start: for each host the command, its variables and its ranks, or a reducer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from slipstream.base.outputs import objection, summary_file
from slipstream.base.settings import Settings
from slipstream.base.timelines import file_of
from slipstream.comm.rendezvous.discovery import advertised_addresses
from slipstream.launch.environment import laid_over, passed_on, rank_variables
from slipstream.launch.hosts import Placed
from slipstream.launch.options import JobOptions
from slipstream.launch.reducers import reducer_spec
from slipstream.launch.torch_rendezvous import address_towards, master_address
from slipstream.launch.wire import Spec, SpecRank

__all__ = ["JobSpecs", "check_outputs"]

_OF_REDUCERS = ("SLIPSTREAM_CONGESTION", "SLIPSTREAM_DSCP")  # what the job's own reducers do as its ranks do


def check_outputs(options: JobOptions, settings: Settings, local: Mapping[str, bool]) -> None:
    """ValueError if a rank of this machine cannot write its timeline or summary: the job would fail only in init.

    ``settings``: of the ranks. ``local``: of every host, whether it is this machine.
    """
    for what, template in (("timeline", settings.timeline), ("summary", settings.summary)):
        for placed in options.placed:
            path = _output(what, template, placed.rank) if local[placed.host] else None
            why = objection(os.path.join(options.cwd, path)) if path else ""
            if why:
                option = f"--{what} (SLIPSTREAM_{what.upper()})"
                raise ValueError(f"{option}: rank {placed.rank} cannot write its {what} {path}: {why}")


def _output(what: str, template: str | None, rank: int) -> str | None:
    """The file that ``rank`` writes, if it writes one."""
    if template is None:
        return None
    return file_of(template, rank) if what == "timeline" else summary_file(template, rank)


@dataclass(frozen=True)
class JobSpecs:
    """The specs of one job. ``local``: of every host, whether it is this machine; ``names``: what messages call it.

    ``store``: where the job's store listens. ``master_port``: where rank 0 listens for `torch.distributed`,
    ``jax_port``: for JAX's.
    """

    options: JobOptions
    settings: Settings
    local: Mapping[str, bool]
    names: Mapping[str, str]
    store: tuple[str, int]
    master_port: int
    jax_port: int
    secret: bytes = field(repr=False)

    def of_ranks(self, host: str, placed: list[Placed], reducers: Mapping[str, str]) -> Spec:
        """What starts the ranks of ``host``; ``reducers``: variables that tell them of reducers."""
        options, local = self.options, self.local[host]
        env = passed_on(os.environ, remote=not local)
        env["MASTER_ADDR"] = master_address(self._first, host, self.local, options.interface)
        env["MASTER_PORT"] = str(self.master_port)
        env["SLIPSTREAM_JAX_COORDINATOR"] = _joined(env["MASTER_ADDR"], self.jax_port)
        env = laid_over(env, reducers)
        env["SLIPSTREAM_STORE"] = self._store_for(host)
        env["SLIPSTREAM_SECRET"] = self.secret.hex()
        env["SLIPSTREAM_HOST_NAME"] = self.names[host]
        env["SLIPSTREAM_MIN_NP"] = str(options.min_np or len(options.placed))
        if options.interface is not None:
            env["SLIPSTREAM_INTERFACE"] = options.interface
        env |= options.env
        ranks = [SpecRank(one.rank, rank_variables(one, len(options.placed))) for one in placed]
        return Spec(options.argv, options.cwd, env, not local, ranks, options.horovod, options.mpi4jax)

    def of_reducer(self, host: str) -> Spec:
        """What starts a reducer on ``host``."""
        interface = self.options.interface
        secret = {"SLIPSTREAM_REDUCER_SECRET": self.secret.hex()}
        env = laid_over(passed_on(os.environ, remote=not self.local[host]), secret)
        env |= {name: value for name, value in self.options.env.items() if name in _OF_REDUCERS}
        if interface is not None:
            env["SLIPSTREAM_INTERFACE"] = interface
        loopback = all(self.local.values()) and interface is None
        return reducer_spec(env, local=self.local[host], loopback=loopback)

    def reducer_address(self, host: str) -> str:
        """Where the ranks reach a reducer that runs on ``host``."""
        interface = self.options.interface
        if interface is not None and self.local[host]:
            return advertised_addresses(interface)[0]
        return master_address(host, self._first, self.local, interface)

    @property
    def _first(self) -> str:
        """The host of rank 0."""
        return self.options.placed[0].host

    def _store_for(self, host: str) -> str:
        """Where the ranks of ``host`` reach the store."""
        address, port = self.store
        if self.settings.address and not self.local[host]:
            address = self.settings.address[0]
        elif address in ("0.0.0.0", "::"):
            if self.local[host]:
                address = "127.0.0.1" if address == "0.0.0.0" else "::1"
            else:
                address = address_towards(host) or advertised_addresses(self.options.interface)[0]
        return _joined(address, port)


def _joined(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
