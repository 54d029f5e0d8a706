"""Where the ranks of a group live and what messages between them cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Network", "Topology", "by_host", "members_of_hosts", "numbered"]


class Network(NamedTuple):
    """Costs of messages: ``alpha`` seconds each, ``beta`` seconds a byte, ``overhead`` seconds of a CPU each.

    A full-duplex port of every rank serves its host, one of every host serves the others. ``gamma``: seconds
    to reduce a byte. The defaults are shared memory with sleeping peers, and 10 Gbit/s Ethernet.
    """

    intra_alpha: float = 15e-6
    intra_beta: float = 1 / 5e9
    intra_overhead: float = 3e-6
    inter_alpha: float = 25e-6
    inter_beta: float = 1 / 1.25e9
    inter_overhead: float = 8e-6
    gamma: float = 1 / 6e9


@dataclass(frozen=True)
class Topology:
    """``hosts[r]``: the number of the host of rank r of a group, any integers. Raises ValueError if empty.

    ``crowded``: a host has more ranks of the group than processors for them, so that messages cost time of processors.
    ``hierarchy``: whether all-reduces reduce within each host first: "on", "off", or "auto", where that is quicker.
    """

    hosts: tuple[int, ...]
    network: Network = field(default_factory=Network)
    crowded: bool = False
    hierarchy: str = "auto"

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ValueError("a topology has one rank at least")

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.hosts)


def numbered(hosts: Iterable[str]) -> tuple[int, ...]:
    """Each host's number, in order of first appearance: ``(0, 0, 1)`` of ``["a", "a", "b"]``."""
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(host, len(numbers)) for host in hosts)


def members_of_hosts(size: int, hosts: Sequence[int] | None) -> list[list[int]]:
    """Return the ranks of each host, hosts in order of first appearance; None: all ranks share one host."""
    if hosts is None:
        return [list(range(size))]
    members: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts):
        members.setdefault(host, []).append(rank)
    return list(members.values())


def by_host(size: int, hosts: Sequence[int] | None) -> list[int]:
    """Return the ranks, those of a host side by side, so that a ring enters each host once."""
    return [rank for members in members_of_hosts(size, hosts) for rank in members]
