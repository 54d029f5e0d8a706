"""Which ranks run where: ``-H``, host files, and the places they give."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

__all__ = [
    "Host",
    "Placed",
    "discovered",
    "parse_hostfile",
    "parse_hosts",
    "place",
    "shown_hosts",
    "shown_names",
]


@dataclass(frozen=True)
class Host:
    """A host and how many ranks it takes. A ``reducer`` takes none: it sums what the ranks send."""

    name: str
    slots: int
    reducer: bool = False


@dataclass(frozen=True)
class Placed:
    """One rank: its host and its local and cross numbers (cross: among hosts with that local rank)."""

    rank: int
    host: str
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


# What begins with "-", the user too, would be an option to ssh.
_ENTRY = re.compile(r"((?:\w[\w.-]*@)?\w[\w.-]*|\[[0-9A-Fa-f:]+\])(?::(\d{1,6}))?")


def _host(text: str, where: str) -> Host:
    match = _ENTRY.fullmatch(text)
    if match is None or match[2] == "0":
        raise ValueError(f"{where}: expected host or host:slots, got {text!r:.80}")
    return Host(match[1].strip("[]"), int(match[2] or 1))


def parse_hosts(text: str) -> list[Host]:
    """Reads ``-H host:slots,host:slots``; a host without slots takes one. Raises ValueError."""
    return _merge([_host(entry.strip(), "-H") for entry in text.split(",")])


def parse_hostfile(path: Path) -> list[Host]:
    """Reads lines of ``host``, ``host:4``, ``host slots=4`` or ``host reducer``; ``#`` begins a comment.

    Raises ValueError.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--hostfile: cannot read {path}: {error}") from None
    hosts = []
    for number, line in enumerate(lines, 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        hosts.append(_host_of_line(words, f"{path}:{number}"))
    if not hosts:
        raise ValueError(f"--hostfile: {path} names no host")
    return _merge(hosts)


def _host_of_line(words: list[str], where: str) -> Host:
    host = _host(words[0], where)
    for word in words[1:]:
        slots = re.fullmatch(r"slots=(\d{1,6})", word)
        if slots is not None:
            host = replace(host, slots=int(slots[1]))
        elif word == "reducer":
            host = replace(host, reducer=True)
        else:
            raise ValueError(f"{where}: expected slots=N or reducer, got {word!r:.80}")
    if host.reducer:
        return replace(host, slots=0)
    if host.slots < 1:
        raise ValueError(f"{where}: a host of 0 slots takes no ranks; mark it reducer, or leave it out")
    return host


def discovered(script: str, slots: int = 1, limit: float = 60.0) -> list[Host]:
    """The hosts that a script prints: lines of ``host:4``, or ``host`` for one of ``slots`` slots.

    Raises ValueError if it fails, prints none, or takes longer than ``limit`` seconds.
    """
    where = f"host discovery by {script}"
    try:
        done = subprocess.run(
            shlex.split(script), stdout=subprocess.PIPE, text=True, timeout=limit, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ValueError(f"{where}: {error}") from None
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{where}: it names no host")
    return _merge([_host(line if ":" in line else f"{line}:{slots}", where) for line in lines])


def _merge(hosts: list[Host]) -> list[Host]:
    merged: dict[str, Host] = {}
    for host in hosts:
        known = merged.get(host.name, replace(host, slots=0))
        merged[host.name] = replace(
            known, slots=known.slots + host.slots, reducer=known.reducer or host.reducer
        )
    return list(merged.values())


def place(count: int, hosts: list[Host]) -> list[Placed]:
    """Fills the hosts in order with ranks 0..count-1; raises ValueError when there are not enough slots."""
    hosts = [host for host in hosts if host.slots]
    available = sum(host.slots for host in hosts)
    if count > available:
        given = ", ".join(f"{host.name}:{host.slots}" for host in hosts)
        slots = f"{available} slot{'' if available == 1 else 's'}"
        one = " (a host without :N has one slot)" if any(host.slots == 1 for host in hosts) else ""
        raise ValueError(
            f"{count} ranks do not fit the {slots} given ({given}); raise slots{one} or lower -np"
        )
    taken: list[tuple[str, int]] = []
    left = count
    for host in hosts:
        if left:
            taken.append((host.name, min(left, host.slots)))
            left -= taken[-1][1]
    placed: list[Placed] = []
    for index, (name, size) in enumerate(taken):
        for local in range(size):
            cross = [i for i, (_, other) in enumerate(taken) if other > local]
            placed.append(Placed(len(placed), name, local, size, cross.index(index), len(cross)))
    return placed


def shown_hosts(hosts: Iterable[Host]) -> str:
    """What ``-H`` takes, and `parse_hosts` reads."""
    return ",".join(
        f"[{host.name}]:{host.slots}" if ":" in host.name else f"{host.name}:{host.slots}" for host in hosts
    )


def shown_names(hosts: Iterable[str]) -> dict[str, str]:
    """What messages call each host, on all of them: as it was given, but this one by its name if there are others."""
    given = set(hosts)
    names = {host: host.rpartition("@")[2] for host in given}
    if len(given) > 1:
        names |= {host: socket.gethostname() for host, name in names.items() if name in _LOOPBACK}
    return names


_LOOPBACK = ("localhost", "127.0.0.1", "::1")
