"""Which ranks with one host id are on one machine. A virtual machine that is cloned while it runs keeps the id that the
kernel drew when it started, so two machines may have the same one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Callable, Sequence

from slipstream.base.files import kernel_text
from slipstream.base.log import Log
from slipstream.comm.rendezvous.discovery import interfaces

__all__ = ["doubtful", "mark", "told_apart"]

_log = Log("slipstream.machines")


def mark() -> str:
    """What two machines with one host id hardly share: name, addresses and hardware addresses of the interfaces."""
    words = [socket.gethostname()]
    for one in interfaces():
        hardware = ""
        with contextlib.suppress(OSError):
            hardware = kernel_text(f"/sys/class/net/{one.name}/address")
        words += [one.name, hardware, *one.ipv4, *one.ipv6]
    return hashlib.sha256("|".join(words).encode()).hexdigest()[:16]


def doubtful(host_ids: Sequence[str], marks: Sequence[str]) -> bool:
    """Whether some ranks have one host id and different marks; both by rank."""
    seen: dict[str, str] = {}
    return any(seen.setdefault(host, own) != own for host, own in zip(host_ids, marks, strict=True))


def told_apart(host_ids: Sequence[str], rank: int, exchange: Callable[[bytes], list[bytes]]) -> list[str]:
    """Host ids by rank that only ranks of one machine share. All ranks call it.

    Ranks are on one machine, and in one network namespace, if they can reach each other's abstract Unix sockets.
    ``exchange`` all-gathers bytes.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        name = f"slipstream-{os.urandom(16).hex()}"
        probe.bind("\0" + name)
        names = [str(json.loads(text)) for text in exchange(json.dumps(name).encode())]
        same = [r for r, host in enumerate(host_ids) if host == host_ids[rank]]
        first = next(r for r in same if r == rank or _is_here(names[r]))
        # A probe stays until all have looked for it.
        firsts = [int(json.loads(text)) for text in exchange(json.dumps(first).encode())]
    missing = [r for r in same if firsts[r] != first]
    if missing and first == rank:
        _log.warning(
            "rank %d has the same host id as %s but is not on one machine with them (a clone?): they use TCP",
            rank,
            ", ".join(f"rank {r}" for r in missing),
        )
    alone = {
        host: len({firsts[r] for r, other in enumerate(host_ids) if other == host}) == 1 for host in host_ids
    }
    return [host if alone[host] else f"{host}/{firsts[r]}" for r, host in enumerate(host_ids)]


def _is_here(name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect("\0" + name)
        except OSError:
            return False
    return True
