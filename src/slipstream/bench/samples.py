"""Samples of repeats: of the slowest rank, how far apart they are, and how two contenders compare. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

__all__ = ["quartiles", "ratio", "slowest", "spread_cells", "times"]


def slowest(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Per repeat, the time of the slowest rank."""
    return [max(samples) for samples in zip(*ranks, strict=True)]


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    """The first and third quartile: half of the samples lie between them."""
    if len(samples) < 2:
        return samples[0], samples[0]
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, high


def times(samples: Sequence[float]) -> dict[str, Any]:
    """Median, minimum, 90th percentile (nearest rank) of the samples, and these in their order."""
    ordered = sorted(samples)
    return {
        "median": statistics.median(ordered),
        "min": ordered[0],
        "p90": ordered[-(-9 * len(ordered) // 10) - 1],
        "samples": list(samples),
    }


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """How many times as long the peer takes: of medians; ``low`` and ``high``: quartiles over the repeats.

    Above 1 ours is faster.
    """
    low, high = quartiles([a / b for a, b in zip(theirs, ours, strict=True)])
    return {"value": statistics.median(theirs) / statistics.median(ours), "low": low, "high": high}


def spread_cells(samples: Sequence[float], unit: str, form: str = ".1f") -> tuple[str, str, str]:
    """Three cells of a table: the median, the least and the greatest sample, and how many there are."""
    low, high = min(samples), max(samples)
    return f"{statistics.median(samples):{form}} {unit}", f"{low:{form}} to {high:{form}}", f"{len(samples)}"
