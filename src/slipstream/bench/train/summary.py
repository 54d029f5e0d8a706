"""From what the ranks reported to step times, hidden communication, ratios and limits. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.bench.samples import ratio, times
from slipstream.bench.train.options import PLAIN, REDUCING
from slipstream.plan.sizing import relative_time

__all__ = ["cost", "hidden", "least_communication", "least_step", "summarise"]


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
    gradients found. With prices ``cost_per_1000_steps``, and ``relative_cost`` to each other contender. ``reducers``
    maps the names of the job's to whether they were still used at the end. ``limit`` holds `least_communication` and
    `least_step` at ``link_rate`` (bit/s), and the same beside the reducers, as fast as a host each; or None.
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
    reducers = end.get("reducers", {})
    if options.get("worker_price") or options.get("reducer_price"):
        _add_costs(rows, options, len(set(start["hosts"])), len(reducers))
    return {
        **start,
        "plain": plain,
        "peak_memory": end["peak_memory"],
        "reducers": reducers,
        "limit": _limit(start, plain, link_rate, len(reducers)),
        "contenders": rows,
    }


def _steps(turns: Sequence[Mapping[str, Any]]) -> list[float]:
    return [seconds for turn in turns for seconds in turn["steps"]]


def _medians(turns: Sequence[Mapping[str, Any]]) -> list[float]:
    """The median step of each repeat."""
    return [statistics.median(turn["steps"]) for turn in turns]


def _row(turns: Sequence[Mapping[str, Any]], plain: float, batch: int | None) -> dict[str, Any]:
    step = times(_steps(turns))
    communication = times([turn["exchange"] for turn in turns])
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


def cost(
    seconds: float, hosts: int, host_price: float, reducers: int = 0, reducer_price: float = 0.0
) -> float:
    """What ``seconds`` of so many hosts and reducers cost; the prices are of one for an hour."""
    return seconds / 3600 * (hosts * host_price + reducers * reducer_price)


def _add_costs(
    rows: Mapping[str, dict[str, Any]], options: Mapping[str, Any], hosts: int, reducers: int
) -> None:
    for name, row in rows.items():
        used = reducers if name in REDUCING else 0
        seconds = 1000 * row["step"]["median"]
        row["cost_per_1000_steps"] = cost(
            seconds, hosts, options["worker_price"], used, options["reducer_price"]
        )
    for row in rows.values():
        row["relative_cost"] = {
            peer: row["cost_per_1000_steps"] / rows[peer]["cost_per_1000_steps"]
            for peer in row["ratio"]
            if rows[peer]["cost_per_1000_steps"]
        }


def hidden(communication: float, exposed: float) -> float:
    """Seconds of communication that passed while something was computed; never below 0.

    ``exposed`` may be more than the communication alone takes: it is all by which a step is longer, copies between
    gradients and buckets included.
    """
    return max(0.0, communication - exposed)


def least_communication(nbytes: int, hosts: int, link_rate: float, reducers: int = 0) -> float:
    """Seconds an all-reduce of ``nbytes`` takes at least, if each host and reducer sends ``link_rate`` bit/s.

    Without reducers every host must send, and receive, 2(n-1)/n of the bytes; its ranks may share memory.
    """
    if hosts < 2:
        return 0.0
    return relative_time(hosts, reducers) * 8 * nbytes / link_rate


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


def _limit(
    start: Mapping[str, Any], plain: float, link_rate: float | None, reducers: int
) -> dict[str, Any] | None:
    hosts = len(set(start["hosts"]))
    if link_rate is None or hosts < 2:
        return None
    communication = least_communication(start["bytes"], hosts, link_rate)
    ready = [(at, nbytes) for at, nbytes in start["ready"]] if start["ready"] else None
    beside = least_communication(start["bytes"], hosts, link_rate, reducers)
    return {
        "link_rate": link_rate,
        "communication": communication,
        "step": least_step(plain, communication, ready),
        "communication_beside_reducers": beside,
        "step_beside_reducers": least_step(plain, beside, ready),
    }
