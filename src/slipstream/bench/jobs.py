"""Starts the ranks of a measurement, and hands on what rank 0 reports while they run.

The ranks are those of ``slipstream run``, or of ``mpirun`` where Open MPI takes part: then all contenders share
its processes, and slipstream's ranks meet at a store that this process serves. Rank 0 reports by one JSON
object a line on its standard output (`channel`); whatever else a rank prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.base.settings import Settings
from slipstream.comm.rendezvous.discovery import bind_addresses, is_local_host, reachable_addresses
from slipstream.comm.rendezvous.store_server import StoreServer
from slipstream.launch.environment import passed_on
from slipstream.launch.hosts import Host, place
from slipstream.launch.processes import descendants, die_with_parent
from slipstream.launch.torch_rendezvous import address_towards

__all__ = ["JobFailed", "Placement", "channel", "mpi_command", "run"]

_GRACE = 20.0  # seconds between asking the launcher to end and killing it: it gives its ranks 15
_PART = 32 << 10  # launchers cut longer lines
# What an enclosing launcher of another kind left, and what the launcher itself has already read.
_NOT_FOR_RANKS = re.compile(r"OMPI_.*|PMIX_.*|PMI_.*|SLURM_.*|SLIPSTREAM_(HOSTFILE|SSH_COMMAND)")


class JobFailed(RuntimeError):
    """The ranks could not be started, one ended with an error, or they took too long."""


@dataclass(frozen=True)
class Placement:
    """Where ``count`` ranks run: on ``hosts`` in order, or all on this host.

    ``ssh_command`` reaches other hosts; ``interface`` (name or address) is the one to bind and advertise;
    ``reducers`` is what `slipstream run --reducers` takes.
    """

    count: int
    hosts: tuple[Host, ...] = ()
    ssh_command: str = "ssh"
    interface: str | None = None
    reducers: str | None = None

    def per_host(self) -> list[Host]:
        """The hosts in order, each with the number of ranks it takes; ValueError when they do not fit."""
        taken: dict[str, int] = {}
        for one in place(self.count, list(self.hosts) or [Host("localhost", self.count)]):
            taken[one.host] = taken.get(one.host, 0) + 1
        return [Host(name, count) for name, count in taken.items()]

    def one_host(self) -> bool:
        """Whether all ranks run on this host."""
        return all(is_local_host(host.name) for host in self.per_host())


def channel(rank: int) -> Callable[[Mapping[str, Any]], None]:
    """Called once by every rank, first of all: returns the function by which rank 0 reports (JSON objects).

    From then on whatever is printed, by libraries too, goes to standard error; on other ranks a report is
    dropped.
    """
    sys.stdout.flush()
    pipe = os.dup(1)
    os.dup2(2, 1)

    def report(message: Mapping[str, Any]) -> None:
        if rank != 0:
            return
        for line in _lines(json.dumps(message)):
            data = line.encode()
            while data:
                data = data[os.write(pipe, data) :]

    return report


def _lines(text: str) -> list[str]:
    """``text`` as lines that no launcher cuts: a tab, which JSON escapes, ends those that go on."""
    parts = [text[at : at + _PART] for at in range(0, len(text), _PART)] or [""]
    return [*(part + "\t\n" for part in parts[:-1]), parts[-1] + "\n"]


def run(
    module: str,
    arguments: Sequence[str],
    placement: Placement,
    *,
    mpi: bool,
    limit: float,
    environment: Mapping[str, str],
) -> Generator[dict[str, Any], None, None]:
    """Runs ``python -m module arguments`` as the ranks; yields the objects that rank 0 reports, as they come.

    ``mpi``: they are ranks of Open MPI. ``limit``: seconds for all of it. ``environment``: variables for all
    ranks, beside this process's own. Raises JobFailed when a rank ends with an error, when the time is over, or
    when there is no launcher; ValueError for a placement that cannot be. However it ends (also by closing the
    iterator, or Ctrl-C), no process is left.
    """
    base = passed_on(os.environ, remote=False) | dict(environment)
    base = {name: value for name, value in base.items() if not _NOT_FOR_RANKS.fullmatch(name)}
    if placement.interface is not None:
        base["SLIPSTREAM_INTERFACE"] = placement.interface
    base["PYTHONPATH"] = _search_path(environment.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", ""))
    ranks = [sys.executable, "-m", module, *arguments]
    with contextlib.ExitStack() as stack:
        if mpi:
            base |= _reducers_of_mpi(placement)
            base |= _serve_store(placement, base, stack)
            command = [*mpi_command(placement, _to_export(base, environment)), *ranks]
        else:
            export = [word for name in sorted(environment) for word in ("-x", name)]
            command = [*_run_command(placement, stack), *export, "--", *ranks]
        yield from _objects(command, base, time.monotonic() + limit, limit)


def _search_path(*given: str) -> str:
    """PYTHONPATH values as one; the ranks find this very package first, in a source tree too."""
    here = Path(__file__).resolve().parents[2]
    first = [] if here.name in ("site-packages", "dist-packages") else [str(here)]
    paths = [os.path.abspath(path) for text in given for path in text.split(os.pathsep) if path]
    return os.pathsep.join(dict.fromkeys([*first, *paths]))


def _run_command(placement: Placement, stack: contextlib.ExitStack) -> list[str]:
    """``slipstream run`` with all its options; a file that it reads lives as long as ``stack``."""
    command = [sys.executable, "-m", "slipstream", "run", "-np", str(placement.count), "--no-prefix"]
    if placement.reducers is not None:
        command += ["--reducers", placement.reducers]
    if placement.reducers == "auto":  # only a file can mark reducers
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "hosts"
        lines = [f"{host.name} slots={host.slots}\n" for host in placement.per_host()]
        lines += [f"{host.name} reducer\n" for host in placement.hosts if host.reducer]
        file.write_text("".join(lines), encoding="utf-8")
        command += ["--hostfile", str(file), "--ssh-command", placement.ssh_command]
    elif placement.hosts:
        command += ["-H", ",".join(_entry(host) for host in placement.per_host())]
        command += ["--ssh-command", placement.ssh_command]
    else:
        command += ["-H", f"localhost:{placement.count}"]  # not what SLIPSTREAM_HOSTFILE may name
    if placement.interface is not None:
        command += ["--interface", placement.interface]
    return command


def _reducers_of_mpi(placement: Placement) -> dict[str, str]:
    """The variables by which ranks of Open MPI find reducers; ValueError for those that nobody starts."""
    if placement.reducers == "auto":
        raise ValueError("--reducers auto is for slipstream run; beside Open MPI name those that run already")
    return {} if placement.reducers is None else {"SLIPSTREAM_REDUCERS": placement.reducers}


def _entry(host: Host) -> str:
    name = f"[{host.name}]" if ":" in host.name else host.name
    return f"{name}:{host.slots}"


def mpi_command(placement: Placement, exported: Sequence[str]) -> list[str]:
    """``mpirun`` with all its options, up to the command of the ranks. ``exported``: names of variables."""
    # Unbound: a rank bound to one core would think that it shares it with all the others.
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "--map-by", "slot"]
    command += ["-np", str(placement.count), "--mca", "btl", "tcp,self,vader"]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    if placement.hosts:
        command += ["--host", ",".join(_entry(host) for host in placement.per_host())]
    if not placement.one_host():
        command += ["--mca", "plm_rsh_agent", placement.ssh_command]
    if placement.interface is not None:
        for part in ("btl_tcp_if_include", "oob_tcp_if_include"):
            command += ["--mca", part, placement.interface]
    for name in exported:
        command += ["-x", name]
    return command


def _to_export(base: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Names of the variables that ranks on other hosts need too: Open MPI hands on nothing by itself."""
    ours = {name for name in base if name.startswith("SLIPSTREAM_")}
    return sorted(ours | set(environment) | {"PYTHONPATH"})


def _serve_store(
    placement: Placement, base: Mapping[str, str], stack: contextlib.ExitStack
) -> dict[str, str]:
    """Serves a store for the time of ``stack``; returns the variables by which the ranks find it."""
    secret = secrets.token_bytes(32)
    one_host = placement.one_host()
    settings = Settings.from_environment(base)
    bind = bind_addresses(settings.interface, one_host=one_host)
    server = StoreServer(bind, secret, settings.job, encrypt=settings.encrypt)
    stack.callback(server.close)
    address, port = server.address
    if address in ("0.0.0.0", "::"):
        others = [host.name for host in placement.per_host() if not is_local_host(host.name)]
        address = address_towards(others[0]) or reachable_addresses(settings.address, settings.interface)[0]
    where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    return {"SLIPSTREAM_STORE": where, "SLIPSTREAM_SECRET": secret.hex()}


def _objects(
    command: list[str], environment: Mapping[str, str], deadline: float, limit: float
) -> Iterator[dict[str, Any]]:
    try:
        parent = os.getpid()
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on
            preexec_fn=lambda: die_with_parent(signal.SIGTERM, parent),
        )
    except OSError as error:
        raise JobFailed(f"cannot run {command[0]!r}: {error.strerror}") from None
    assert process.stdout is not None
    try:
        with process.stdout:
            yield from _parsed(_read_lines(process.stdout.fileno(), deadline, limit))
        try:
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise _too_late(limit) from None
    finally:
        _end(process)
    if code != 0:
        how = f"ended with code {code}" if code > 0 else f"were ended by signal {-code}"
        raise JobFailed(f"the ranks {how}; standard error shows what they wrote")


def _read_lines(fd: int, deadline: float, limit: float) -> Iterator[bytes]:
    """Lines that come through the pipe until its end; JobFailed at the deadline."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise _too_late(limit)
            data = os.read(fd, 1 << 16)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
    if rest:
        yield rest


def _too_late(limit: float) -> JobFailed:
    return JobFailed(f"the ranks took longer than {limit:g} s (--limit)")


def _parsed(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """The objects among the lines; whatever else is printed goes to standard error."""
    held = b""
    for line in lines:
        if line.endswith(b"\t") and (held or line.startswith(b"{")):
            held += line[:-1]
            continue
        text, held = held + line, b""
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if isinstance(found, dict):
            yield found
        else:
            print(text.decode(errors="replace"), file=sys.stderr)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the launcher and all below it; nothing to do if it has ended."""
    if process.poll() is not None:
        return
    below = descendants(process.pid)
    process.terminate()
    try:
        process.wait(_GRACE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        below += descendants(process.pid)
        process.kill()
        process.wait()
        for pid in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
