"""The lab: makes the hosts and their network, runs commands on them, changes their links, takes all down again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from slipstream.base.units import format_rate, parse_rate
from slipstream.lab import links, registry
from slipstream.lab.namespaces import ProcessIdentity, batch, check_machine, enter, start_holder
from slipstream.lab.registry import LabRecord
from slipstream.lab.remote import start_ssh, write_stand_in
from slipstream.lab.spec import Event, HostSpec, Spec, make

__all__ = ["Lab", "describe"]


class Lab:
    """An emulated cluster, up from construction until `close` (or the end of a ``with`` block, or of this process).

    ``hosts``: how many, or their names or descriptions, or a whole `Spec`; the rest as for `spec.make`: ``rate``
    ("500mbit"), ``paths``, ``slots``, ``reducers``, ``interfaces``, ``family``, ``delay``, ``loss``, ``mtu``. ``ssh``:
    a server on every host instead of a stand-in. ``name``: default is a new one. ``keep``: it outlives this
    process, until `close`.
    Raises ValueError for what makes no sense, LabError for what this machine cannot do. Linux, root.

    >>> with Lab(hosts=2, rate="500mbit") as lab:
    ...     lab.run("h2", ["hostname"], capture_output=True, text=True).stdout
    'h2\\n'
    """

    def __init__(
        self,
        hosts: int | Sequence[str | Mapping[str, Any]] | Spec = 2,
        *,
        name: str | None = None,
        ssh: bool = False,
        keep: bool = False,
        **link: Any,
    ) -> None:
        spec = hosts if isinstance(hosts, Spec) else make(hosts, **link)
        check_machine()
        registry.sweep()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lock: int | None = None
        self.name = name or f"lab-{secrets.token_hex(3)}"
        self._lock = registry.claim(self.name)
        try:
            self._record = self._make(spec, ssh, keep)
        except BaseException:
            self.close()
            raise

    @classmethod
    def attach(cls, name: str | None = None) -> Lab:
        """A lab that is up already (`registry.find` says which); it is not closed with this object."""
        lab = cls.__new__(cls)
        lab._processes, lab._lock = [], None
        lab._record = registry.find(name)
        lab.name = lab._record.name
        return lab

    def _make(self, spec: Spec, ssh: bool, keep: bool) -> LabRecord:
        folder = registry.folder_of(self.name)
        hosts_file = folder / "hosts"
        lines = [f"{own} {host.name}\n" for host in spec.hosts for own in spec.addresses(host.name)]
        hosts_file.write_text("127.0.0.1 localhost\n::1 localhost\n" + "".join(lines), encoding="utf-8")
        names = ["hub", *(host.name for host in spec.hosts)]
        hub, *rest = (self._start(name, keep) for name in names)
        holders = dict(zip(names[1:], rest, strict=True))
        record = LabRecord(self.name, keep, spec, hub, holders)
        each = range(1, spec.interfaces + 1)
        cables = [links.connect(i, holder.pid, spec.mtu, k) for i, holder in enumerate(rest) for k in each]
        batch(hub, "ip", links.hub_setup(spec) + [command for cable in cables for command in cable])
        ports = [links.shape(host, links.port_name(i, k)) for i, host in enumerate(spec.hosts) for k in each]
        batch(hub, "tc", [command for port in ports for command in port])
        for host, holder in zip(spec.hosts, rest, strict=True):
            own = links.host_setup([spec.addresses(host.name, k) for k in each])
            batch(holder, "ip", own + links.neighbours(spec, host))
            batch(
                holder, "tc", [command for k in each for command in links.shape(host, links.device_name(k))]
            )
        mark = {True: " reducer", False: ""}
        slots = [
            f"{host.name} slots={host.slots}{mark[host.reducer]}\n"
            for host in spec.hosts
            if host.slots or host.reducer
        ]
        (folder / "hostfile").write_text("".join(slots), encoding="utf-8")
        shell = (
            start_ssh(folder, spec, holders, self._processes)
            if ssh
            else write_stand_in(folder, spec, holders)
        )
        (folder / "shell_command").write_text(shell, encoding="utf-8")
        registry.write(record)
        return record

    def _start(self, name: str, keep: bool) -> ProcessIdentity:
        holder, process = start_holder(name, registry.folder_of(self.name) / "hosts", keep=keep)
        self._processes.append(process)
        return holder

    @property
    def spec(self) -> Spec:
        """What the lab looks like now."""
        return self._record.spec

    @property
    def hosts(self) -> list[str]:
        """The names of its hosts, in order."""
        return [host.name for host in self.spec.hosts]

    def linked(self) -> list[str]:
        """The hosts whose first interface, which names and measurements go over, has its cable in."""
        self._current()
        return [host for host in self.hosts if 1 not in self._record.cut_interfaces(host)]

    def address(self, host: str, interface: int = 1) -> str:
        """The first address of a host on one of its interfaces, from 1."""
        return self.spec.address(host, interface)

    def environment(self) -> dict[str, str]:
        """The variables by which commands on the hosts find the others: `slipstream run` needs no -H."""
        folder = registry.folder_of(self.name)
        variables = {
            "SLIPSTREAM_LAB": self.name,
            "SLIPSTREAM_HOSTFILE": str(folder / "hostfile"),
            "SLIPSTREAM_SSH_COMMAND": (folder / "shell_command").read_text(encoding="utf-8"),
        }
        if self.spec.common_rate is not None:
            variables["SLIPSTREAM_LAB_RATE"] = format_rate(self.spec.common_rate)
        return variables

    def popen(
        self, host: str, command: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Starts a command on a host, in this folder (or ``cwd``); its process id is the command's own.

        ``env`` is added to this process's environment and `environment`. The hosts share the machine's cores, so
        OMP_NUM_THREADS is 1 unless it is set. ``options`` as for `subprocess.Popen`.
        """
        return subprocess.Popen(self._inside(host, command, options), env=self._variables(env), **options)

    def run(
        self, host: str, command: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Runs a command on a host to its end: as `popen`, with the ``options`` of `subprocess.run`."""
        options.setdefault("check", True)
        return subprocess.run(self._inside(host, command, options), env=self._variables(env), **options)

    def _inside(self, host: str, command: Sequence[str], options: dict[str, Any]) -> list[str]:
        holder = self._record.holders[self.spec.host(host).name]
        return [*enter(holder, os.fspath(options.pop("cwd", None) or os.getcwd())), *command]

    def _variables(self, added: Mapping[str, str] | None) -> dict[str, str]:
        return {"OMP_NUM_THREADS": "1", **os.environ, **self.environment(), **(added or {})}

    def rate(self, host: str, rate: str | int, *, path: int = 0) -> None:
        """Changes the rate of a host's link, or of one of its paths (from 1), at once; nothing on its way is lost.

        A host with several interfaces has the same rates on all.
        """
        bits = rate if isinstance(rate, int) else parse_rate(rate)
        old = self._current().spec.host(host)
        if not 0 <= path <= len(old.paths):
            raise ValueError(f"host {host} has {len(old.paths)} paths, not {path}")
        if path:
            paths = tuple(bits if i == path - 1 else own for i, own in enumerate(old.paths))
            new = dataclasses.replace(old, paths=paths)
        else:
            new = dataclasses.replace(old, rate=bits)
        self._reshape(old, new)

    def _reshape(self, old: HostSpec, new: HostSpec) -> None:
        number = self.hosts.index(old.name)
        for k in range(1, self.spec.interfaces + 1):
            batch(self._record.holders[old.name], "tc", links.reshape(old, new, links.device_name(k)))
            batch(self._record.hub, "tc", links.reshape(old, new, links.port_name(number, k)))
        self._update(spec=self.spec.replaced(new))

    def cut(self, host: str, interface: int = 0) -> None:
        """Pulls the host's cables out, or that of one ``interface`` (from 1)."""
        cables = self._plug(host, interface, "down")
        self._update(cut=tuple(sorted({*self._record.cut} | cables)))

    def heal(self, host: str, interface: int = 0) -> None:
        """Plugs the host's cables in again, or that of one ``interface`` (from 1)."""
        cables = self._plug(host, interface, "up")
        self._update(cut=tuple(sorted({*self._record.cut} - cables)))

    def _plug(self, host: str, interface: int, state: str) -> set[str]:
        spec = self._current().spec
        if not 0 <= interface <= spec.interfaces:
            raise ValueError(f"hosts have {spec.interfaces} interfaces, not {interface}")
        number = spec.hosts.index(spec.host(host))
        chosen = [interface] if interface else range(1, spec.interfaces + 1)
        ports = [links.port_name(number, k) for k in chosen]
        batch(self._record.hub, "ip", [f"link set {port} {state}" for port in ports])
        return {f"{host}:{k}" for k in chosen}

    def apply(self, event: Event) -> None:
        """Does what an event says, now."""
        if event.action in ("rate", "path"):
            assert event.rate is not None
            self.rate(event.host, event.rate, path=event.path)
        elif event.action == "cut":
            self.cut(event.host, event.interface)
        else:
            self.heal(event.host, event.interface)

    def _current(self) -> LabRecord:
        """Another process may have changed the lab."""
        self._record = registry.read(self.name)
        return self._record

    def _update(self, **changes: Any) -> None:
        self._record = dataclasses.replace(self._record, **changes)
        registry.write(self._record)

    def close(self) -> None:
        """Ends all that runs on the hosts and removes them, their network and the lab's files. Idempotent."""
        if not registry.folder_of(self.name).exists():
            return
        for process in self._processes:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        try:
            registry.destroy(self.name)
        finally:
            for process in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def describe(spec: Spec) -> str:
    """A lab in a line: ``4 hosts, 500mbit``."""
    reducers = sum(host.reducer for host in spec.hosts)
    words = [_counted(len(spec.hosts) - reducers, "host")]
    words += [_counted(reducers, "reducer")] if reducers else []
    words += [f"{spec.interfaces} interfaces each"] if spec.interfaces > 1 else []
    words += {"ipv6": ["IPv6 only"], "both": ["IPv4 and IPv6"]}.get(spec.family, [])
    rate = spec.common_rate
    unlimited = all(host.line_rate is None for host in spec.hosts if not host.reducer)
    others = "links without a limit" if unlimited else "links of different rates"
    words.append(format_rate(rate) if rate is not None else others)
    return ", ".join(words)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
