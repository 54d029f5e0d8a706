"""What the network between the hosts of a job is like, in classes, measured as the job starts.

Plans are chosen by it (`slipstream.plan.choose`). A choice decides in which order numbers are added, and a program that
runs twice should add them in the same one. So the result is one of few classes, a factor of ten apart: what one network
gives differs from run to run, but rarely so much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.base.dtypes import DType, Op
from slipstream.comm.measuring.clocks import clock_offset
from slipstream.comm.measuring.runs import Runs, compiled, fresh_memory, seconds_of
from slipstream.plan.steps import Draft, Kind, Plan, Space
from slipstream.plan.topology import Network, by_host, members_of_hosts, numbered

__all__ = ["Measured", "classified", "measure"]

_LEAST_BYTES, _MOST_BYTES = 64 << 10, 4 << 20
_LEAST_SECONDS = 2e-3  # of what is measured: less is mostly latency
_LARGE_TURNS = 3
_SMALL_TURNS = 9
_SLOWEST, _FASTEST = 1e7 / 8, 1e11 / 8  # bytes a second
_NEAR = 100e-6  # seconds that a message takes in one place, the processors at both ends included


class Measured(NamedTuple):
    """``rate``: bytes a second of a host's port; ``latency``: seconds until a short message has come, see `_latency`.

    ``clock``: see `clock_offset`. It is this rank's own; the others are the same on all ranks.
    """

    rate: float
    latency: float
    clock: int = 0


def measure(session: _core.Session, group: _core.Group, hosts: Sequence[str]) -> Measured:
    """Measures what a host sends to the next one, all at the same time. Collective over ``group``, all ranks.

    ``hosts``: of each rank; there are two at least. It takes tens of milliseconds.
    """
    places = numbered(hosts)
    shift = compiled(_shift(group.rank, by_host(len(places), places)))
    runs = Runs(session, group)
    source, target = fresh_memory(_MOST_BYTES), fresh_memory(_MOST_BYTES)

    def seconds(nbytes: int, turns: int) -> float:
        """The least of the slowest rank's: what takes longer is noise."""

        def turn() -> float:
            return runs.slowest(
                lambda: runs.run(shift, source[:nbytes], target[:nbytes], DType.U8, -1, "all_to_all")
            )

        return min(turn() for _ in range(turns))

    for nbytes in (1, _LEAST_BYTES):
        seconds(nbytes, 1)  # sets up the links
    while seconds(nbytes, 1) < _LEAST_SECONDS and nbytes < _MOST_BYTES:
        nbytes *= 4
    few, all_ = (seconds(n, _LARGE_TURNS) for n in (nbytes // 4, nbytes))
    rate = 0.75 * nbytes / max(all_ - few, all_ / 2)
    latency = _latency(runs, group.rank, places, source[:1], target[:1])
    clock = clock_offset(runs, group.rank)
    return Measured(rate, latency, 0 if hosts[group.rank] == hosts[0] else clock)


def _latency(
    runs: Runs, rank: int, places: Sequence[int], source: NDArray[np.uint8], target: NDArray[np.uint8]
) -> float:
    """Half of the shortest time in which a message comes back, of the pair of hosts for which that is longest.

    Only two ranks have a part in it, and the one that answers cannot be early. What all ranks do at once tells of their
    processors too: where several share one, a near network would be taken for a far one.
    """
    plan = _ping(rank, len(places), [members[0] for members in members_of_hosts(len(places), places)])
    there_and_back = compiled(plan)

    def turn() -> float:
        return seconds_of(lambda: runs.run(there_and_back, source, target, DType.U8, -1, "all_to_all"))

    mine = min(turn() for _ in range(_SMALL_TURNS)) / 2
    asks = plan.steps[0].kind == Kind.SEND
    return float(runs.agree(np.array([mine if asks else 0.0]), Op.MAX)[0])


def classified(measured: Measured) -> Network:
    """The class of a network, which plans are chosen by."""
    power = round(math.log10(min(max(measured.rate, _SLOWEST), _FASTEST) * 8))
    steps = round(math.log10(max(measured.latency, _NEAR) / _NEAR))
    alpha = _NEAR * 10.0**steps if steps else Network().inter_alpha
    return Network()._replace(inter_beta=8 / 10.0**power, inter_alpha=alpha)


def _ping(rank: int, size: int, leaders: Sequence[int]) -> Plan:
    """Of each two hosts the first rank of one sends to that of the other, and back; a last host has the first for that.

    Ranks that ask have a SEND for their first step.
    """
    draft = Draft("all_to_all", "ping", rank, size, 1)
    for at in range(0, len(leaders), 2):
        asks, answers = leaders[at], leaders[(at + 1) % len(leaders)]
        if rank == asks:
            draft.send(answers, 0, Space.IN)
            draft.recv(answers, 0, Space.OUT)
        elif rank == answers:
            came = draft.recv(asks, 0, Space.TMP)
            draft.send(asks, 0, Space.TMP, after=(came,))
    if rank not in leaders:
        draft.copy(0, Space.IN, Space.OUT)
    return draft.plan()


def _shift(rank: int, order: Sequence[int]) -> Plan:
    """Each rank sends to the next one in ``order``, in which hosts are side by side."""
    at = order.index(rank)
    draft = Draft("all_to_all", "shift", rank, len(order), 1)
    draft.send(order[(at + 1) % len(order)], 0, Space.IN)
    draft.recv(order[at - 1], 0, Space.OUT)
    return draft.plan()
