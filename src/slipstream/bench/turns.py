"""What the ranks of all measurements do alike: who has the next turn, who is missing, what rank 0 says first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from slipstream.base.settings import Settings
from slipstream.bench import machine
from slipstream.bench.gathering import gather_objects

__all__ = ["Turn", "agreed", "start_message", "turns"]

T = TypeVar("T")


class Turn(NamedTuple, Generic[T]):
    """``place`` in its repeat; repeats below 0 are the warm-up, which does not count."""

    repeat: int
    place: int
    contender: T


def turns(contenders: Sequence[T], repeats: int, warmup: int = 0) -> Iterator[Turn[T]]:
    """Every contender once a repeat. Another one begins each time, so that none always follows the same."""
    for repeat in range(-warmup, repeats):
        for place in range(len(contenders)):
            yield Turn(repeat, place, contenders[(place + repeat) % len(contenders)])


def agreed(reasons: Mapping[str, str]) -> dict[str, str]:
    """What is missing on any rank, by name, with the reason of the first rank that lacks it; the same on all ranks."""
    everywhere: dict[str, str] = {}
    for rank, one in enumerate(gather_objects(dict(reasons))):
        for name, reason in one.items():
            everywhere.setdefault(name, f"rank {rank}: {reason}")
    return everywhere


def start_message(hosts: Sequence[Any], missing: Mapping[str, str], *packages: str) -> dict[str, Any]:
    """What only the ranks know: their hosts, what TCP does, versions of ``packages``, who is missing.

    ``hosts``: for each rank what only ranks of its host have too; the message numbers them.
    """
    order, settings = list(dict.fromkeys(hosts)), Settings.from_environment()
    return {
        "kind": "start",
        "hosts": [order.index(host) for host in hosts],
        "encrypted": settings.encrypt,
        "wire": settings.wire,
        "missing": dict(missing),
        "versions": machine.versions("slipstream", "numpy", *packages),
    }
