"""What a job's reducers are worth, measured once when it starts: their links' rates, and what small messages take.

Every rank runs the same few all-reduces, and all agree on the slowest rank's times. Afterwards the session splits
by these rates, and `slipstream.plan.choose` chooses for small messages by these times.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.base.dtypes import DType, Op
from slipstream.comm.measuring.runs import Runs, compiled, fresh_memory, seconds_of
from slipstream.plan.choose import SMALL_SIZES, SmallCosts
from slipstream.plan.registry import build
from slipstream.plan.sizing import measured_rates

__all__ = ["calibrate"]

_LEAST_BYTES, _MOST_BYTES = 1 << 20, 16 << 20
_LEAST_SECONDS = 0.06  # a shorter all-reduce is mostly latency
_LARGE_TURNS = 5
_SMALL_TURNS = 9

_log = logging.getLogger("slipstream.reducers")


def calibrate(
    client: _core.ReducerClient,
    session: _core.Session,
    group: _core.Group,
    rank: int,
    hosts: Sequence[int],
) -> SmallCosts | None:
    """Agrees on the reducers that all ranks reach, and on what they are worth. None: there are none.

    Collective over ``group``, all ranks; about a second, less where links are fast. ``hosts``: per rank, the number of
    its host. All rates are those of hosts.
    """
    size = len(set(hosts))
    runs = _Runs(client, session, group, hosts)
    states = client.states()
    reached = runs.agree(np.array([state["ready"] for state in states], dtype=np.float64), Op.MIN) > 0
    if not reached.any():
        client.set_rates([-1.0] * len(states), 1.0)
        return None
    nbytes = runs.size_for(_LEAST_SECONDS)
    ring = _of_bytes(*(min(runs.large(n) for _ in range(_LARGE_TURNS)) for n in (nbytes // 4, nbytes)))
    worker = 2 * (size - 1) / size * nbytes / ring

    def turn(nbytes: int) -> NDArray[np.float64]:
        # Together as fast as all workers, so that their own ring has no part; anew, as slow ones are given less.
        client.set_rates([float(size) if up else -1.0 for up in reached], worker)
        return runs.through_reducers(nbytes)

    turns = [
        np.min([turn(n) for _ in range(_LARGE_TURNS)], axis=0)  # each at its best: what is slower is noise
        for n in (nbytes // 4, nbytes)
    ]
    seconds = [_of_bytes(few, all_) for few, all_ in zip(*turns, strict=True)]
    # One that is lost meanwhile had no part.
    rates = measured_rates(
        size, ring, [s if up and s else None for s, up in zip(seconds, reached, strict=True)]
    )
    client.set_rates([-1.0 if rate is None else rate for rate in rates], worker)
    if rank == 0:
        found = ", ".join(
            f"{s['name']} {'not measured' if r is None else f'{r:.2f}'}"
            for s, r in zip(states, rates, strict=True)
        )
        _log.info("rates of reducers' links, relative to a worker's: %s", found)
    low, high = SMALL_SIZES
    small = {name: (runs.small(low, name), runs.small(high, name)) for name in runs.small_plans}
    return SmallCosts(small.pop("all_reduce"), small.pop("reducer"), small)


def _of_bytes(quarter: float, whole: float) -> float:
    """Seconds that bytes take, without what any all-reduce takes; from those of a quarter of them, and of all."""
    return max(4 / 3 * (whole - quarter), whole / 2)


class _Runs(Runs):
    """All-reduces of zeros; every rank makes the same calls."""

    def __init__(
        self, client: _core.ReducerClient, session: _core.Session, group: _core.Group, hosts: Sequence[int]
    ) -> None:
        super().__init__(session, group)
        self._client = client
        rank, size = group.rank, len(group.ranks)
        way = "ring" if len(set(hosts)) == size else "hierarchical"
        ring = build("all_reduce", way, rank, size, hosts=hosts)
        self._ring, self._split = compiled(ring), compiled(ring, split=True)
        self.small_plans = {
            "all_reduce": self.doubling,
            "reducer": compiled(build("all_reduce", "recursive_doubling", rank, size), split=True),
            "broadcast": compiled(build("broadcast", "binomial", rank, size, root=0)),
            "all_gather": compiled(build("all_gather", "direct", rank, size)),
            "reduce_scatter": compiled(build("reduce_scatter", "direct", rank, size)),
        }
        self._data: NDArray[np.float32] = fresh_memory(_MOST_BYTES).view(np.float32)

    def size_for(self, seconds: float) -> int:
        """The bytes whose ring takes at least so long, within bounds."""
        nbytes = _LEAST_BYTES
        while self.large(nbytes) < seconds and nbytes < _MOST_BYTES:
            nbytes *= 4
        return nbytes

    def large(self, nbytes: int) -> float:
        """Seconds of an all-reduce over the workers' ring."""
        return self.slowest(lambda: self._sum(self._ring, self._data[: nbytes // 4]))

    def through_reducers(self, nbytes: int) -> NDArray[np.float64]:
        """Seconds of each reducer's part of one that they take alone, in equal parts."""
        self._sum(self._split, self._data[: nbytes // 4])
        return self.agree(np.array(self._client.part_seconds()[1:]), Op.MAX)

    def small(self, nbytes: int, way: str) -> float:
        """Seconds of a small operation by one of `small_plans`, the median."""
        plan, data = self.small_plans[way], self._data[: nbytes // 4]
        operation = "all_reduce" if way == "reducer" else way

        times = []
        for _ in range(_SMALL_TURNS):
            self._sum(self.doubling, data[:1])  # all begin at the same time
            times.append(seconds_of(lambda: self._sum(plan, data, operation)))
        return float(self.agree(np.array([np.median(times)]), Op.MAX)[0])

    def _sum(self, plan: _core.Plan, data: NDArray[np.float32], operation: str = "all_reduce") -> None:
        self.run(plan, data, data, DType.F32, Op.SUM, operation)
