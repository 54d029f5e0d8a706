"""How many reducers pay: times and costs of a training step beside any number of them. Pure.

All-reduce of M bytes among n workers with links of B, beside reducers whose links together are S workers' links:

    T = 2 n (n - 1) / (n^2 + n S - 2 S) * M/B    for S < n; else M/B

For S = 0 that is the ring, 2(n-1)/n * M/B; for S = k equal reducers it is BytePS's optimum (Jiang et al., OSDI
2020); from S = n on every worker sends and receives its data once, which Reduction Server's sizing rule
R = ceil(n Bw / Br) makes true. The formula is in native/reducers/shares.cpp: the native core splits by it, from the
rates that it measures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

__all__ = [
    "MOST_REDUCERS",
    "Cluster",
    "Outcome",
    "Sizing",
    "Training",
    "cheapest",
    "measured_rates",
    "outcome",
    "relative_time",
    "rule",
    "size",
    "split",
    "usable",
]

MOST_REDUCERS = 32  # of a job, whatever the rule says (base/settings)
_HOUR = 3600.0
_ALIKE = (0.75, 1.33)  # times a worker's rate
_LIKE_MOST = (0.57, 1.33)  # times the time that most reducers took


@dataclass(frozen=True)
class Cluster:
    """``workers`` hosts and the reducers that may join them. Rates: bits a second; prices: of one for an hour.

    ``ranks_per_host``: ranks that share a worker's link, and move its data over it once.

    Both prices 0: costs are not asked for. Raises ValueError for what cannot be.
    """

    workers: int
    worker_rate: int
    reducer_rate: int
    worker_price: float = 0.0
    reducer_price: float = 0.0
    ranks_per_host: int = 1

    def __post_init__(self) -> None:
        if self.workers < 2:
            raise ValueError("an all-reduce needs at least 2 workers")
        if self.ranks_per_host < 1:
            raise ValueError("a worker has at least one rank")
        if self.worker_rate < 1 or self.reducer_rate < 1:
            raise ValueError("a rate must be at least one bit a second")
        if not all(0 <= price < math.inf for price in (self.worker_price, self.reducer_price)):
            raise ValueError("a price must be a number, and not below 0")

    @property
    def priced(self) -> bool:
        """Whether costs mean anything."""
        return self.worker_price > 0 or self.reducer_price > 0


@dataclass(frozen=True)
class Training:
    """A step: ``nbytes`` to all-reduce, ``compute`` seconds, and the part of the all-reduce that may ``overlap`` it.

    ``steps``: of the whole training, if its cost is asked for. Raises ValueError for what cannot be.
    """

    nbytes: int
    compute: float
    overlap: float = 0.0
    steps: float | None = None

    def __post_init__(self) -> None:
        if self.nbytes < 1:
            raise ValueError("there must be at least one byte to all-reduce")
        if not 0 <= self.compute < math.inf:
            raise ValueError("the time to compute must be a number of seconds, and not below 0")
        if not 0 <= self.overlap <= 1:
            raise ValueError("the overlap is a part of the communication: 0 to 1")
        if self.steps is not None and not 0 < self.steps < math.inf:
            raise ValueError("the training must have steps")


@dataclass(frozen=True)
class Outcome:
    """What a number of reducers gives: seconds, steps a second, and costs in the unit of the prices.

    ``speedup``: steps a second, relative to none. The costs are None without prices; ``hours`` and ``total_cost``, of
    the whole training, without its steps.
    """

    reducers: int
    communication_seconds: float
    step_seconds: float
    steps_per_second: float
    speedup: float
    cost_per_hour: float | None
    cost_per_step: float | None
    cost_per_1000_steps: float | None
    relative_cost: float | None
    hours: float | None
    total_cost: float | None


@dataclass(frozen=True)
class Sizing:
    """``rule``: how many reducers the sizing rule asks for; ``recommended``: how many of them are of use; ``cheapest``:
    the number that a step costs least with (None without prices); ``outcomes``: by rising number, from none on.
    """

    cluster: Cluster
    training: Training
    rule: int
    recommended: int
    cheapest: int | None
    outcomes: tuple[Outcome, ...]


def relative_time(workers: int, rate: float) -> float:
    """Time of an all-reduce relative to M/B; ``rate``: of all reducers' links together, relative to a worker's."""
    from slipstream._core import reducer_time  # the command line starts without the engine

    return reducer_time(workers, rate)


def split(workers: int, rates: Sequence[float]) -> tuple[float, ...]:
    """The parts of the bytes that let all be done at once, 1 in all: the workers' own ring's, then each reducer's.

    ``rates``: of each reducer's link relative to a worker's, 0 for one that is not there.
    """
    from slipstream._core import reducer_fractions

    return tuple(reducer_fractions(workers, rates))


def measured_rates(workers: int, ring: float, parts: Sequence[float | None]) -> tuple[float | None, ...]:
    """The rate of each reducer's link relative to a worker's, from two measured all-reduces of the same bytes.

    ``ring``: seconds over the workers' own ring. ``parts``: seconds of each reducer's part where they took equal
    parts of all of it, None for one that had none. Links are mostly alike, and times are not exact: what is about the
    rate of most reducers counts as that, and what is about a worker's rate as a worker's. One that is thought to be
    faster than it is holds up all the others. Raises ValueError for times that cannot be.
    """
    present = [part for part in parts if part is not None]
    if ring <= 0 or any(part <= 0 for part in present):
        raise ValueError("a time must be more than 0")
    one = ring * workers / (2 * (workers - 1))  # seconds that all the bytes take over a worker's link
    most = median_low(present) if present else 1.0
    least, longest = (most * factor for factor in _LIKE_MOST)
    parts = [most if part is not None and least <= part <= longest else part for part in parts]
    rates = [None if part is None else min(workers / len(present) * one / part, workers) for part in parts]
    total = math.fsum(rate for rate in rates if rate is not None)
    alike = present and len({part for part in parts if part is not None}) == 1
    if alike and len(present) >= workers > total >= _ALIKE[0] * workers:  # the workers' links held them back
        rates = [None if rate is None else rate * workers / total for rate in rates]
    return tuple(1.0 if rate is not None and _ALIKE[0] <= rate <= _ALIKE[1] else rate for rate in rates)


def rule(cluster: Cluster) -> int:
    """How many reducers have the bandwidth of all workers: ceil(n Bw / Br); more are of no use."""
    return -(-cluster.workers * cluster.worker_rate // cluster.reducer_rate)


def usable(cluster: Cluster) -> int:
    """How many reducers make a job faster, at most: the rule's, within a job's limit; none beside two workers.

    Two workers' ring already moves each byte once.
    """
    return 0 if cluster.workers == 2 else min(rule(cluster), MOST_REDUCERS)


def _step_seconds(cluster: Cluster, training: Training, reducers: int) -> tuple[float, float]:
    """Seconds of the all-reduce, and of the step."""
    rate = reducers * cluster.reducer_rate / cluster.worker_rate
    communication = relative_time(cluster.workers, rate) * 8 * training.nbytes / cluster.worker_rate
    hidden = training.overlap * communication
    return communication, max(training.compute, hidden) + (communication - hidden)


def _cost_per_hour(cluster: Cluster, reducers: int) -> float:
    return cluster.workers * cluster.worker_price + reducers * cluster.reducer_price


def outcome(cluster: Cluster, training: Training, reducers: int) -> Outcome:
    """What ``reducers`` reducers give; ValueError for fewer than none, or more than a job may have."""
    if not 0 <= reducers <= MOST_REDUCERS:
        raise ValueError(f"a job has 0 to {MOST_REDUCERS} reducers")
    communication, step = _step_seconds(cluster, training, reducers)
    alone = _step_seconds(cluster, training, 0)[1]
    hours = None if training.steps is None else training.steps * step / _HOUR
    costs: dict[str, float | None] = dict.fromkeys(("hour", "step", "relative", "total"))
    if cluster.priced:
        hourly = _cost_per_hour(cluster, reducers)
        before = _cost_per_hour(cluster, 0) * alone
        costs["hour"], costs["step"] = hourly, hourly * step / _HOUR
        costs["relative"] = hourly * step / before if before else None
        costs["total"] = None if hours is None else hourly * hours
    return Outcome(
        reducers=reducers,
        communication_seconds=communication,
        step_seconds=step,
        steps_per_second=1 / step,
        speedup=alone / step,
        cost_per_hour=costs["hour"],
        cost_per_step=costs["step"],
        cost_per_1000_steps=None if costs["step"] is None else 1000 * costs["step"],
        relative_cost=costs["relative"],
        hours=hours,
        total_cost=costs["total"],
    )


def cheapest(cluster: Cluster, training: Training) -> int | None:
    """The number of reducers that a step costs least with, the smallest of equals; None without prices."""
    if not cluster.priced:
        return None
    return min(
        range(usable(cluster) + 1),
        key=lambda k: _cost_per_hour(cluster, k) * _step_seconds(cluster, training, k)[1],
    )


def size(cluster: Cluster, training: Training, asked: int | None = None) -> Sizing:
    """None, 1, 2, 4, ... reducers, as many as are of use, the cheapest number, and ``asked``."""
    most, least_cost = usable(cluster), cheapest(cluster, training)
    doubling = (1 << i for i in range(most.bit_length()))
    numbers = {0, most, *doubling} | {one for one in (least_cost, asked) if one is not None}
    outcomes = tuple(outcome(cluster, training, reducers) for reducers in sorted(numbers))
    return Sizing(cluster, training, rule(cluster), most, least_cost, outcomes)
