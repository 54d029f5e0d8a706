"""What the network between the hosts of a job is like, in classes, measured as the job starts.

Plans are chosen by it (`slipstream.plan.choose`). A choice decides in which order numbers are added, and a program that
runs twice should add them in the same one. So the result is one of few classes, a factor of ten apart: what one network
gives differs from run to run, but rarely so much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from slipstream import _core
from slipstream.base.dtypes import DType
from slipstream.comm.measuring.clocks import clock_offset
from slipstream.comm.measuring.runs import Runs, compiled, fresh_memory
from slipstream.plan.steps import Draft, Plan, Space
from slipstream.plan.topology import Network, by_host, numbered

__all__ = ["Measured", "classified", "measure"]

_LEAST_BYTES, _MOST_BYTES = 64 << 10, 4 << 20
_LEAST_SECONDS = 2e-3  # of what is measured: less is mostly latency
_LARGE_TURNS = 3
_SMALL_TURNS = 9
_SLOWEST, _FASTEST = 1e7 / 8, 1e11 / 8  # bytes a second
_NEAR = 100e-6  # seconds that a message takes in one place, the processors at both ends included


class Measured(NamedTuple):
    """``rate``: bytes a second of a host's port; ``latency``: seconds until a short message has come.

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
    latency = seconds(1, _SMALL_TURNS)
    clock = clock_offset(runs, group.rank)
    return Measured(rate, latency, 0 if hosts[group.rank] == hosts[0] else clock)


def classified(measured: Measured) -> Network:
    """The class of a network, which plans are chosen by."""
    power = round(math.log10(min(max(measured.rate, _SLOWEST), _FASTEST) * 8))
    steps = round(math.log10(max(measured.latency, _NEAR) / _NEAR))
    alpha = _NEAR * 10.0**steps if steps else Network().inter_alpha
    return Network()._replace(inter_beta=8 / 10.0**power, inter_alpha=alpha)


def _shift(rank: int, order: Sequence[int]) -> Plan:
    """Each rank sends to the next one in ``order``, in which hosts are side by side."""
    at = order.index(rank)
    draft = Draft("all_to_all", "shift", rank, len(order), 1)
    draft.send(order[(at + 1) % len(order)], 0, Space.IN)
    draft.recv(order[at - 1], 0, Space.OUT)
    return draft.plan()
