"""`horovod.run`: calls a function as the ranks of a job, with Horovod's parameters, by `slipstream.run`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.comm.rendezvous.discovery import is_local_host
from slipstream.launch.calls import CallOptions, call
from slipstream.launch.hosts import Host, discovered, parse_hostfile, parse_hosts, place, shown_hosts

__all__ = ["IGNORED", "run"]

_ALL_LIVE = "the call returns when all ranks have; for training that outlives ranks: slipstream run --min-np"

# Parameters that mean nothing here, and why; a warning says so where one is given.
IGNORED = {
    "reset_limit": _ALL_LIVE,
    "cooldown_range": "no host comes back into a job",
    "ssh_port": "all ranks run on this host",
    "ssh_identity_file": "all ranks run on this host",
    "disable_cache": "no result of a check is remembered",
    "use_gloo": "",  # there is no other way, and no harm in it
    "use_mpi": "slipstream uses no MPI",
    "mpi_args": "slipstream uses no MPI",
}


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls ``func(*args, **kwargs)`` in ``num_proc`` new processes of this host; returns the results by rank.

    ``np``, ``min_np`` and ``max_np`` are old names of ``num_proc``, ``min_num_proc`` and ``max_num_proc``.
    ``start_timeout``: seconds in which all ranks must have joined. ``output_filename``: a folder for what they print.
    ``network_interfaces``: names such as eth0. ``executable``: their Python. ``hosts``, ``hostfile``
    or what ``host_discovery_script`` prints (``slots`` a host): must be this host alone. Another parameter that has
    no meaning here causes a warning, ``min_num_proc`` below ``num_proc`` a ValueError.
    Functions, results and exceptions as in `slipstream.run`.

    >>> horovod.run(pow, args=(2, 3), num_proc=2)
    [8, 8]
    """
    notes = _answers(locals())
    count = num_proc if np is None else np
    least, most = (
        one if old is None else old for one, old in ((min_num_proc, min_np), (max_num_proc, max_np))
    )
    if least is not None and least < count:
        raise ValueError(f"min_num_proc={least}, num_proc={count}: {_ALL_LIVE}")
    if most is not None and most > count:
        notes[f"max_num_proc={most}"] = f"the job has {count} ranks to its end"
    for what, why in notes.items():
        warnings.warn(f"horovod.run: {what} has no meaning in slipstream: {why}", stacklevel=2)
    named = _named_hosts(hosts, hostfile, host_discovery_script, slots or 1)
    if named is not None:
        _check_hosts(count, named)
    interfaces = ",".join(network_interfaces or ()) or network_interface
    options = CallOptions(
        count,
        start_timeout=start_timeout,
        executable=executable or sys.executable,
        output_dir=output_filename,
        interface=interfaces,
        verbose=bool(verbose),
    )
    return call(func, args, kwargs, options)


def _answers(given: Mapping[str, Any]) -> dict[str, str]:
    """The parameters that are given and have no meaning, and why."""
    if given["use_gloo"] and given["use_mpi"]:
        raise ValueError("give use_gloo or use_mpi, not both")
    return {name: why for name, why in IGNORED.items() if given[name] and why}


def _check_hosts(count: int, named: list[Host]) -> None:
    others = [placed.host for placed in place(count, named) if not is_local_host(placed.host)]
    if others:
        raise ValueError(
            f"a function is called on this host alone, not on {others[0]}: make it a script, and run it by "
            f"slipstream run -H {shown_hosts(named)} --horovod -- python SCRIPT"
        )


def _named_hosts(
    hosts: str | None, hostfile: str | None, script: str | None, slots: int
) -> list[Host] | None:
    if sum(one is not None for one in (hosts, hostfile, script)) > 1:
        raise ValueError("give one of hosts, hostfile and host_discovery_script")
    if hosts is not None:
        return parse_hosts(hosts)
    if hostfile is not None:
        return parse_hostfile(Path(hostfile))
    return discovered(script, slots) if script is not None else None
