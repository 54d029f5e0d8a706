"""What each collective is, as data: which sizes it can have, what it moves, and how far that can be hurried.

The *size* of a measurement is that of the largest buffer a rank passes, as in nccl-tests: of the whole, where
the other side of the collective has a part for each rank. The *count* is the number of elements in the call: of
the whole (all_reduce, broadcast, reduce, send_recv), or of one rank's part (the others).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slipstream.base.units import parse_size

__all__ = [
    "COLLECTIVES",
    "DTYPES",
    "OPS",
    "Collective",
    "Shape",
    "bus_factor",
    "check_operation",
    "growing_sizes",
    "memory_bytes",
    "network_bytes",
    "network_seconds",
    "parse_sizes",
    "shape",
    "shapes",
]

# with the bytes of an element
DTYPES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
}
OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")
_BITWISE = ("band", "bor", "bxor")


@dataclass(frozen=True)
class Collective:
    """``parted``: one side has a part for each rank; ``reduces``: takes an operation; ``rooted``: has a root."""

    name: str
    parted: bool = False
    reduces: bool = False
    rooted: bool = False

    @property
    def in_place(self) -> bool:
        """Whether the result takes the place of the input: where all libraries can do that, or must."""
        return self.name in ("all_reduce", "broadcast", "reduce")

    def has_result(self, rank: int, root: int) -> bool:
        """Whether ``rank`` gets a result that can be checked."""
        if self.name == "barrier":
            return False
        return self.name not in ("reduce", "gather") or rank == root


COLLECTIVES = {
    one.name: one
    for one in (
        Collective("all_reduce", reduces=True),
        Collective("reduce_scatter", parted=True, reduces=True),
        Collective("all_gather", parted=True),
        Collective("broadcast", rooted=True),
        Collective("reduce", reduces=True, rooted=True),
        Collective("gather", parted=True, rooted=True),
        Collective("scatter", parted=True, rooted=True),
        Collective("all_to_all", parted=True),
        Collective("send_recv"),
        Collective("barrier"),
    )
}


@dataclass(frozen=True)
class Shape:
    """One size of a collective: bytes, elements of the whole, and elements of the call (see above)."""

    nbytes: int
    elements: int
    count: int


def check_operation(op: str, dtype: str) -> None:
    """Raises ValueError when ``op`` is not defined on ``dtype``."""
    if op in _BITWISE and dtype.startswith(("float", "bfloat")):
        raise ValueError(f"{op} is an operation on integers, not on {dtype}")


def shape(collective: Collective, nbytes: int, itemsize: int, ranks: int) -> Shape:
    """The largest size of at most ``nbytes`` that divides as it must, but one element a part at least."""
    if collective.name == "barrier":
        return Shape(0, 0, 0)
    parts = ranks if collective.parted else 1
    count = max(1, nbytes // (itemsize * parts))
    return Shape(count * parts * itemsize, count * parts, count)


def shapes(collective: Collective, sizes: Iterable[int], itemsize: int, ranks: int) -> list[Shape]:
    """`shape` of each of ``sizes`` (bytes); those that come to the same are measured once."""
    return list(dict.fromkeys(shape(collective, size, itemsize, ranks) for size in sizes))


def parse_sizes(text: str) -> list[int]:
    """Bytes of ``4K,64K,1M``; ValueError."""
    return [parse_size(part) for part in text.split(",")]


def growing_sizes(least: int, most: int, factor: float) -> list[int]:
    """``least``, times ``factor`` each, up to ``most`` (bytes); ValueError when that does not end."""
    if not 0 < least <= most:
        raise ValueError(f"--min {least} is not between 1 and --max {most}")
    if factor <= 1:
        raise ValueError(f"--factor {factor:g} is not above 1")
    sizes = []
    size = float(least)
    while size <= most:
        sizes.append(int(size))
        size *= factor
    return list(dict.fromkeys(sizes))


def bus_factor(collective: str, ranks: int) -> float:
    """busbw / algbw, as nccl-tests defines it: makes different numbers of ranks comparable."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("broadcast", "reduce", "send_recv"):
        return 1.0
    return (ranks - 1) / ranks


# ---- limits ----


def memory_bytes(collective: str, nbytes: int, ranks: int) -> int:
    """What memory must carry when ``ranks`` of one host run the collective once, and all else stays in caches.

    Every rank reads its input once and writes its result once (a broadcast's root writes nothing).
    """
    part = nbytes // ranks
    read_written = {
        "all_reduce": (ranks * nbytes, ranks * nbytes),
        "reduce_scatter": (ranks * nbytes, ranks * part),
        "all_gather": (ranks * part, ranks * nbytes),
        "broadcast": (nbytes, (ranks - 1) * nbytes),
        "reduce": (ranks * nbytes, nbytes),
        "gather": (ranks * part, nbytes),
        "scatter": (nbytes, ranks * part),
        "all_to_all": (ranks * nbytes, ranks * nbytes),
        "send_recv": (ranks * nbytes, ranks * nbytes),
        "barrier": (0, 0),
    }
    return sum(read_written[collective])


def network_seconds(
    collective: str, nbytes: int, hosts: Sequence[int], rate: float, root: int = 0
) -> float | None:
    """Seconds that no algorithm between hosts can beat, or None where the rate of links is no limit.

    ``hosts``: for each rank, the number of its host. ``rate``: payload bits a second, each way at once, of each
    host's link; what ranks of one host exchange costs nothing.
    """
    across = network_bytes(collective, nbytes, hosts, root)
    return 8 * across / rate if across else None


def network_bytes(collective: str, nbytes: int, hosts: Sequence[int], root: int = 0) -> float:
    """Bytes that must pass the busiest link one way."""
    n = len(hosts)
    per_host = {host: hosts.count(host) for host in hosts}
    count = len(per_host)
    if count < 2:
        return 0.0
    # the share of the ranks that the host with the fewest has not: what it must get, or hand out, of n parts
    elsewhere = 1 - min(per_host.values()) / n
    if collective == "all_reduce":
        return 2 * nbytes * (count - 1) / count
    if collective in ("reduce_scatter", "all_gather"):
        return nbytes * elsewhere
    if collective in ("broadcast", "reduce"):
        return float(nbytes)
    if collective in ("gather", "scatter"):
        return nbytes * (1 - per_host[hosts[root]] / n)
    if collective == "all_to_all":
        return nbytes * max(mine * (n - mine) / n for mine in per_host.values())
    if collective == "send_recv":
        leaving = [hosts[r] for r in range(n) if hosts[r] != hosts[(r + 1) % n]]
        return float(nbytes * max(leaving.count(host) for host in leaving))
    return 0.0
