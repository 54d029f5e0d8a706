"""From the samples of all ranks to medians, ratios and limits: pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.bench.collective.catalogue import bus_factor, memory_bytes, network_seconds
from slipstream.bench.collective.contenders import ALGORITHM
from slipstream.bench.collective.task import MEMORY_FROM
from slipstream.bench.samples import ratio, slowest, times

__all__ = ["FASTEST", "contender_row", "limit_seconds", "memory_rates", "summarise_size"]

FASTEST = "fastest"  # of the measured algorithms: a peer, but without a row of its own


def contender_row(samples: Sequence[float], collective: str, nbytes: int, ranks: int) -> dict[str, Any]:
    """Seconds per call (median, min, p90), and bytes a second: ``algbw`` = bytes / median, and ``busbw``.

    A barrier has no bytes, and no bandwidth (None).
    """
    found = times(samples)
    algbw = nbytes / found["median"] if nbytes else None
    return found | {
        "algbw": algbw,
        "busbw": None if algbw is None else algbw * bus_factor(collective, ranks),
    }


def memory_rates(ranks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Bytes per second of all ranks together: copied, added in place, and the greater of what these move.

    ``ranks``: of each what `slipstream.bench.machine.memory_traffic` returned. A copy reads and writes 2 bytes
    per byte, an addition in place 3.
    """
    rates = {
        kind: len(ranks) * ranks[0]["bytes"] / statistics.median(slowest([rank[kind] for rank in ranks]))
        for kind in ("copy", "add")
    }
    return rates | {"traffic": max(2 * rates["copy"], 3 * rates["add"])}


def limit_seconds(
    collective: str,
    nbytes: int,
    hosts: Sequence[int],
    root: int,
    *,
    link_rate: float | None,
    traffic: float | None,
) -> dict[str, Any] | None:
    """The time that nothing can beat, and what sets it; None where we know of none.

    ``hosts``: for each rank, the number of its host. Several hosts: the rate of a link (payload bits a second).
    One host: what its memory carries (``traffic``, bytes a second), from 4 MiB on.
    """
    if len(set(hosts)) > 1:
        seconds = network_seconds(collective, nbytes, hosts, link_rate, root) if link_rate else None
        return {"seconds": seconds, "of": "network"} if seconds else None
    if traffic and nbytes >= MEMORY_FROM:
        return {"seconds": memory_bytes(collective, nbytes, len(hosts)) / traffic, "of": "memory"}
    return None


def summarise_size(size: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the record from what rank 0 reported of one size.

    ``job`` has the collective, its root, the ranks' hosts, the link rate, and the rates of the memory.
    """
    collective, hosts = job["collective"], job["hosts"]
    nbytes, n = size["bytes"], len(job["hosts"])
    rows: dict[str, Any] = {}
    for name, found in size["contenders"].items():
        if "unsupported" in found:
            rows[name] = dict(found)
            continue
        samples = slowest(found["seconds"])
        rows[name] = contender_row(samples, collective, nbytes, n)
        rows[name] |= {"wrong": found["wrong"], "first_wrong": found["first_wrong"]}
    measured = {name: row for name, row in rows.items() if "median" in row}
    for name, row in measured.items():
        if name.startswith("slipstream"):
            row["ratio"] = {
                peer: ratio(other["samples"], row["samples"])
                for peer, other in measured.items()
                if not peer.startswith("slipstream")
            }
    by_algorithm = [row for name, row in measured.items() if name.startswith(ALGORITHM)]
    if by_algorithm and "slipstream" in measured:
        fastest, chosen = min(by_algorithm, key=lambda row: row["median"]), measured["slipstream"]
        chosen["ratio"][FASTEST] = ratio(fastest["samples"], chosen["samples"])
    traffic = job["memory"]["traffic"] if job["memory"] else None
    limit = limit_seconds(
        collective, nbytes, hosts, job["root"] or 0, link_rate=job["link_rate"], traffic=traffic
    )
    kept = {key: size[key] for key in ("bytes", "count", "calls")}
    return kept | {"limit": limit, "contenders": rows}
