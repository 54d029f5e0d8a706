"""From what the ranks reported to step times, hidden communication, ratios and limits. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.bench.train.options import PLAIN

__all__ = ["hidden", "least_communication", "least_step", "ratio", "spread", "summarise"]


def summarise(
    start: Mapping[str, Any],
    turns: Sequence[Mapping[str, Any]],
    end: Mapping[str, Any],
    link_rate: float | None,
) -> dict[str, Any]:
    """What the ranks reported, as one record of plain values, for tables and JSON. All times in seconds.

    ``contenders`` maps names to rows: ``step`` and ``communication`` (median, min, p90, samples), ``exposed``,
    ``hidden``, ``overlap`` (the share of communication that is hidden), ``efficiency`` (plain step / step),
    ``samples_per_second`` of all ranks, ``ratio`` to each other contender (`ratio`), and ``wrong``, the number of wrong
    gradients found. ``limit`` holds `least_communication` and `least_step` at ``link_rate`` (bit/s), or None.
    """
    options, ranks = start["options"], start["ranks"]
    names = list(dict.fromkeys([PLAIN, *options["contenders"]]))
    by_name = {name: [turn for turn in turns if turn["contender"] == name] for name in names}
    plain = statistics.median(_steps(by_name[PLAIN]))
    rows = {
        name: _row(mine, plain, options["batch"] and options["batch"] * ranks)
        for name, mine in by_name.items()
        if mine
    }
    for name, row in rows.items():
        row["ratio"] = {
            peer: ratio(_medians(by_name[peer]), _medians(by_name[name]))
            for peer in rows
            if name != PLAIN and peer not in (name, PLAIN)
        }
        row["buckets"] = end["buckets"][name]
    return {
        **start,
        "plain": plain,
        "peak_memory": end["peak_memory"],
        "limit": _limit(start, plain, link_rate),
        "contenders": rows,
    }


def _steps(turns: Sequence[Mapping[str, Any]]) -> list[float]:
    return [seconds for turn in turns for seconds in turn["steps"]]


def _medians(turns: Sequence[Mapping[str, Any]]) -> list[float]:
    """The median step of each repeat."""
    return [statistics.median(turn["steps"]) for turn in turns]


def _row(turns: Sequence[Mapping[str, Any]], plain: float, batch: int | None) -> dict[str, Any]:
    step = spread(_steps(turns))
    communication = spread([turn["exchange"] for turn in turns])
    exposed = max(0.0, step["median"] - plain)
    covered = hidden(communication["median"], exposed)
    return {
        "step": step,
        "communication": communication,
        "exposed": exposed,
        "hidden": covered,
        "overlap": covered / communication["median"] if communication["median"] else None,
        "efficiency": plain / step["median"],
        "samples_per_second": batch / step["median"] if batch else None,
        "wrong": sum(turn["wrong"] for turn in turns),
    }


def hidden(communication: float, exposed: float) -> float:
    """Seconds of communication that passed while something was computed; never below 0.

    ``exposed`` may be more than the communication alone takes: it is all by which a step is longer, copies between
    gradients and buckets included.
    """
    return max(0.0, communication - exposed)


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """Median, minimum, 90th percentile (nearest rank) of the samples, and these."""
    ordered = sorted(samples)
    return {
        "median": statistics.median(ordered),
        "min": ordered[0],
        "p90": ordered[-(-9 * len(ordered) // 10) - 1],
        "samples": list(samples),
    }


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """The peer's median time to ours (above 1: ours is faster), and the quartiles of the ratio repeat by repeat."""
    each = sorted(a / b for a, b in zip(theirs, ours, strict=True))
    low, _, high = statistics.quantiles(each, n=4, method="inclusive") if len(each) > 1 else (each[0],) * 3
    return {"median": statistics.median(theirs) / statistics.median(ours), "low": low, "high": high}


def least_communication(nbytes: int, hosts: int, link_rate: float) -> float:
    """Seconds an all-reduce of ``nbytes`` takes at least, if each host sends ``link_rate`` bit/s and nobody else sums.

    Every host must send, and receive, 2(n-1)/n of the bytes; its ranks may share memory.
    """
    return 8 * nbytes * 2 * (hosts - 1) / hosts / link_rate


def least_step(plain: float, communication: float, ready: Sequence[tuple[float, int]] | None) -> float:
    """Seconds a step takes at least, if all of its communication takes ``communication``.

    ``ready``: when, in seconds from the start, how many bytes of gradients become ready; what becomes ready at some
    time or later cannot have been sent earlier. Without it, only the longer of the two counts.
    """
    if not ready:
        return max(plain, communication)
    left = total = sum(nbytes for _, nbytes in ready)
    bound = plain
    for at, nbytes in ready:
        bound = max(bound, at + communication * left / total)
        left -= nbytes
    return bound


def _limit(start: Mapping[str, Any], plain: float, link_rate: float | None) -> dict[str, Any] | None:
    if link_rate is None or start["hosts"] < 2:
        return None
    communication = least_communication(start["bytes"], start["hosts"], link_rate)
    ready = [(at, nbytes) for at, nbytes in start["ready"]] if start["ready"] else None
    return {
        "link_rate": link_rate,
        "communication": communication,
        "step": least_step(plain, communication, ready),
    }
