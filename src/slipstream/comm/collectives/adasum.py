"""Adasum: vectors of all ranks become one that suits all of them, however their directions lie to each other.

Two vectors become

    adasum(a, b) = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b

which is their sum where they are orthogonal and their mean where they are parallel. Those of more ranks are joined pair
by pair (Maleki et al., "Scaling Distributed Training with Adaptive Summation", arXiv 2006.02924).

The ranks of a host stand side by side, so that pairs are on one host first. In step k of log2 n each rank exchanges
half of what it has with the rank that stands 2^k places from it, and joins the halves; what travels is 1/2, 1/4, ... of
the vectors, as in a reduce-scatter. Dot products are of whole vectors: the 2^(k+1) ranks that hold parts of the same
two vectors add theirs up, in float64. Then the parts go back the same way, as in an all-gather; each number has been
computed on one rank, so all ranks get the same bits.

If the number of ranks is no power of two, the first ranks join in pairs before, as many as make it one. Where a stands
for m ranks then, and b for n, m / (m + n) and n / (m + n) take the place of the halves. So parallel vectors of any
number of ranks become their mean.

With SLIPSTREAM_HIERARCHY=on the ranks of each host are averaged, and Adasum joins the averages of the hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.base.dtypes import DType, itemsize
from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.work import DONE, Work
from slipstream.comm.membership.group import Group
from slipstream.plan.topology import members_of_hosts

__all__ = ["DTYPES", "Vectors", "adasum", "averages_hosts"]

DTYPES = (DType.F64, DType.F32, DType.F16, DType.BF16)
"""What vectors may consist of. 16-bit ones are computed in float64, and rounded after each step."""

_F64 = int(DType.F64)
_BLOCK = (
    8192  # numbers that are computed at a time: they stay in the cache, and BLAS takes one thread for so few
)
# A vector of a smaller square has no direction that float64 could tell.
_LEAST = float(np.finfo(np.float64).tiny) ** 0.5


@dataclass(frozen=True)
class Vectors:
    """Vectors side by side in ``memory``, flat bytes: ``counts`` numbers each, of the same ``dtype`` (`DTYPES`).

    >>> vectors = Vectors(numpy.zeros(5, numpy.float32).view(numpy.uint8), DType.F32, (2, 3))
    """

    memory: NDArray[np.uint8]
    dtype: DType
    counts: tuple[int, ...]

    @property
    def count(self) -> int:
        """Numbers of all of them."""
        return sum(self.counts)

    def like(self) -> Vectors:
        """As many, with nothing in them yet."""
        return Vectors(np.empty_like(self.memory), self.dtype, self.counts)

    def address(self, begin: int) -> int:
        """Where number ``begin`` of all is."""
        return int(self.memory.ctypes.data) + begin * itemsize(self.dtype)

    def read(self, begin: int, out: NDArray[np.float64]) -> None:
        """Numbers from ``begin`` on, as many as ``out`` has."""
        _core.cast(self.dtype, _F64, out.ctypes.data, self.address(begin), out.size)

    def write(self, begin: int, numbers: NDArray[np.float64]) -> None:
        """The opposite; rounds to nearest."""
        _core.cast(_F64, self.dtype, self.address(begin), numbers.ctypes.data, numbers.size)

    def blocks(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """What lies between two numbers, in parts of one vector each: its number, where the part begins, its end."""
        bounds = list(accumulate(self.counts, initial=0))
        for vector, low in enumerate(bounds[:-1]):
            first, last = max(begin, low), min(end, bounds[vector + 1])
            for start in range(first, last, _BLOCK):
                yield vector, start, min(start + _BLOCK, last)


def adasum(group: Group, vectors: Vectors, title: str) -> None:
    """Replaces the vectors by what all ranks' become, each one by itself. Every rank of the group calls it.

    ``title``: what errors and reports call it. No other operation runs on ``group`` meanwhile. Raises SlipstreamError
    when a rank is lost.
    """
    ways = _Ways(group, vectors, vectors.like(), title)
    hosts = members_of_hosts(group.size, group.topology.hosts)
    whole = 0, vectors.count
    if not averages_hosts(group):
        order = [rank for members in hosts for rank in members]
        _join_ranks(ways, order, [1] * group.size, group.rank)
        return
    first, *others = next(members for members in hosts if group.rank in members)
    if group.rank != first:
        ways.exchange(first, whole, None)
        ways.exchange(first, None, whole)
        return
    for number, rank in enumerate(others, 2):
        ways.exchange(rank, None, whole, to=ways.theirs)
        shares = np.full((len(vectors.counts), 2), (1 - 1 / number, 1 / number))
        add(vectors, ways.theirs, whole, shares, vectors)
    _join_ranks(ways, [members[0] for members in hosts], [*map(len, hosts)], group.rank)
    for rank in others:
        ways.exchange(rank, whole, None)


def averages_hosts(group: Group) -> bool:
    """Whether the ranks of each host are averaged, and only those averages joined by Adasum."""
    return group.topology.hierarchy == "on"


def _join_ranks(ways: _Ways, order: Sequence[int], weights: Sequence[int], rank: int) -> None:
    """Joins the vectors of the ranks in ``order``, which stand for ``weights`` ranks; this one is ``rank``."""
    place = order.index(rank)
    left = 1 << (len(order).bit_length() - 1)  # when the first have joined in pairs
    paired = 2 * (len(order) - left)
    whole = 0, ways.vectors.count
    if place < paired and place % 2:
        ways.exchange(order[place - 1], whole, None)
        ways.exchange(order[place - 1], None, whole)
        return
    if place < paired:
        ways.exchange(order[place + 1], None, whole, to=ways.theirs)
        by = factors(products(ways.vectors, ways.theirs, whole), weights[place], weights[place + 1])
        add(ways.vectors, ways.theirs, whole, by, ways.vectors)
    weights = [sum(weights[i : i + 2]) for i in range(0, paired, 2)] + [*weights[paired:]]
    order_left = [*order[:paired:2], *order[paired:]]
    _halve_and_double(ways, order_left, weights, order_left.index(rank))
    if place < paired:
        ways.exchange(order[place + 1], whole, None)


def _halve_and_double(ways: _Ways, order: Sequence[int], weights: Sequence[int], place: int) -> None:
    """Joins the vectors of the ranks in ``order``, as many as a power of two; this one is at ``place``."""
    vectors, theirs = ways.vectors, ways.theirs
    mine = 0, vectors.count
    given: list[tuple[int, tuple[int, int], tuple[int, int]]] = []
    distance = 1
    while distance < len(order):
        peer = order[place ^ distance]
        first = not place & distance
        middle = (mine[0] + mine[1]) // 2
        lower, upper = (mine[0], middle), (middle, mine[1])
        mine, other = (lower, upper) if first else (upper, lower)
        ways.exchange(peer, other, mine, to=theirs)
        a, b = (vectors, theirs) if first else (theirs, vectors)
        found = products(a, b, mine)
        _add_up(ways, order, place, 2 * distance, found)
        low = place & -2 * distance  # where the ranks that a stands for begin
        high = low + distance
        by = factors(found, sum(weights[low:high]), sum(weights[high : high + distance]))
        add(a, b, mine, by, vectors)
        given.append((peer, mine, other))
        distance *= 2
    for peer, mine, other in reversed(given):
        ways.exchange(peer, mine, other)


def products(a: Vectors, b: Vectors, span: tuple[int, int]) -> NDArray[np.float64]:
    """a.b, |a|^2 and |b|^2 of what lies in ``span``, for each vector: shape (vectors, 3)."""
    found = np.zeros((len(a.counts), 3))
    x, y = np.empty((2, _BLOCK))
    with np.errstate(all="ignore"):  # what is not finite spoils the vector, on all ranks
        for vector, begin, end in a.blocks(*span):
            u, v = x[: end - begin], y[: end - begin]
            a.read(begin, u)
            b.read(begin, v)
            found[vector] += np.dot(u, v), np.dot(u, u), np.dot(v, v)
    return found


def factors(found: NDArray[np.float64], m: int, n: int) -> NDArray[np.float64]:
    """What the two vectors of each pair are multiplied by: shape (vectors, 2). ``found``: their `products`.

    ``m``, ``n``: how many ranks each stands for.
    """
    shares = np.array([m, n]) / (m + n)
    with np.errstate(all="ignore"):
        return np.where(found[:, 1:] < _LEAST, 1.0, 1.0 - found[:, :1] / found[:, 1:] * shares)


def add(a: Vectors, b: Vectors, span: tuple[int, int], by: NDArray[np.float64], out: Vectors) -> None:
    """Puts ``by[i, 0] * a[i] + by[i, 1] * b[i]`` into ``out``, for each vector i, in ``span``."""
    x, y = np.empty((2, _BLOCK))
    with np.errstate(all="ignore"):
        for vector, begin, end in a.blocks(*span):
            u, v = x[: end - begin], y[: end - begin]
            a.read(begin, u)
            b.read(begin, v)
            u *= by[vector, 0]
            v *= by[vector, 1]
            u += v
            out.write(begin, u)


def _add_up(ways: _Ways, order: Sequence[int], place: int, size: int, numbers: NDArray[np.float64]) -> None:
    """Sums over the ``size`` ranks around this one, with the same bits on all: each sum has the same two terms."""
    other = np.empty_like(numbers)
    distance = 1
    while distance < size:
        ways.swap(order[place ^ distance], numbers, other)
        numbers += other
        distance *= 2


class _Ways:
    """Messages of this rank to another one, and back, as long as one `adasum` runs."""

    def __init__(self, group: Group, vectors: Vectors, theirs: Vectors, title: str) -> None:
        self.vectors, self.theirs = vectors, theirs
        self._group, self._title = group, title

    def exchange(
        self,
        peer: int,
        sent: tuple[int, int] | None,
        received: tuple[int, int] | None,
        to: Vectors | None = None,
    ) -> None:
        """Sends and receives these spans of the vectors; the latter takes its place in ``to`` (the vectors)."""
        vectors = self.vectors
        to = to or vectors
        coming = DONE
        if received is not None:
            coming = self._move(addresses.recv, to, received, peer)
        if sent is not None:
            self._move(addresses.send, vectors, sent, peer).wait()
        coming.wait()

    def _move(self, way: Callable[..., Work], vectors: Vectors, span: tuple[int, int], peer: int) -> Work:
        count = span[1] - span[0]
        if count == 0:
            return DONE
        return self._entitled(
            way(self._group, vectors.address(span[0]), count, vectors.dtype, peer, keep=vectors.memory)
        )

    def swap(self, peer: int, mine: NDArray[np.float64], theirs: NDArray[np.float64]) -> None:
        """Gives ``mine`` for ``theirs``."""
        coming = self._entitled(
            addresses.recv(self._group, theirs.ctypes.data, theirs.size, _F64, peer, keep=theirs)
        )
        self._entitled(addresses.send(self._group, mine.ctypes.data, mine.size, _F64, peer, keep=mine)).wait()
        coming.wait()

    def _entitled(self, work: Work) -> Work:
        work.entitle(self._title)
        return work
