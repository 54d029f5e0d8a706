"""From the samples of all ranks to medians, ratios and targets, and to the tables that people read."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Target", "check_targets", "record_text", "replace_results", "size_text", "summarise", "table"]

# Below this the caches decide, and the speed of memory is no limit.
_LIMIT_FROM_BYTES = 4 << 20
_BEGIN, _END = "<!-- allreduce: begin -->", "<!-- allreduce: end -->"
_KIB, _MIB = 1 << 10, 1 << 20


def summarise(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One job's summary from the results of its ranks.

    A repeat took as long as its slowest rank. Per size and contender: seconds per call (median, min, p90),
    ``algbw`` = bytes / median and ``busbw`` = algbw * 2(n-1)/n (bytes per second), and the ratio of each
    peer's median to it. ``limit`` (seconds) is what no all-reduce can beat: every rank reads its bytes from
    memory once and writes the result once, at the rate at which all ranks together move memory.
    """
    n = len(ranks)
    memory = _memory([rank["memory"] for rank in ranks])
    sizes = []
    for index, first in enumerate(ranks[0]["sizes"]):
        nbytes = first["bytes"]
        per_rank = [rank["sizes"][index]["seconds"] for rank in ranks]
        rows = {}
        for name in first["seconds"]:
            rows[name] = _row(_slowest([one[name] for one in per_rank]), nbytes, n)
        for row in rows.values():
            row["ratio"] = {
                peer: rows[peer]["median"] / row["median"] for peer in ("gloo", "mpi") if peer in rows
            }
        limit = 2 * nbytes * n / memory["traffic"] if nbytes >= _LIMIT_FROM_BYTES else None
        sizes.append({"bytes": nbytes, "calls": first["calls"], "limit": limit, "contenders": rows})
    return {
        "processes": n,
        "idle_cpu": max(rank["idle_cpu"] for rank in ranks),
        "memory": memory,
        "mistakes": [mistake for rank in ranks for mistake in rank["mistakes"]],
        "sizes": sizes,
    }


def _slowest(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Per repeat, the time of the slowest rank."""
    return [max(samples) for samples in zip(*ranks, strict=True)]


def _memory(ranks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Bytes per second of all ranks together: copied, added in place, and the greater of what these move.

    A copy reads and writes 2 bytes per byte, an addition in place 3.
    """
    rates = {
        kind: len(ranks) * ranks[0]["bytes"] / statistics.median(_slowest([rank[kind] for rank in ranks]))
        for kind in ("copy", "add")
    }
    return rates | {"traffic": max(2 * rates["copy"], 3 * rates["add"])}


def _row(samples: list[float], nbytes: int, n: int) -> dict[str, Any]:
    median = statistics.median(samples)
    ordered = sorted(samples)
    return {
        "median": median,
        "min": ordered[0],
        "p90": ordered[-(-9 * len(ordered) // 10) - 1],  # nearest rank
        "algbw": nbytes / median,
        "busbw": nbytes / median * 2 * (n - 1) / n,
        "samples": samples,
    }


@dataclass(frozen=True)
class Target:
    """``value`` compared with ``bound``: at least that much, or below it."""

    text: str
    value: float
    bound: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        return self.value >= self.bound if self.at_least else self.value < self.bound


def check_targets(jobs: Sequence[Mapping[str, Any]]) -> list[Target]:
    """The targets for processes of one host (docs/benchmarks.md) that these jobs allow to be judged."""
    targets = []
    for job in jobs:
        n = job["processes"]
        rows = {size["bytes"]: size["contenders"] for size in job["sizes"]}
        wanted: list[tuple[int, str, str, float]] = []
        if n in (2, 4):
            wanted.append((64 * _MIB, "slipstream", "gloo", 3.0 if n == 2 else 2.5))
            wanted.append((64 * _MIB, "slipstream-shared", "gloo", 5.0))
            wanted += [(size, "slipstream-torch", "gloo", 4.0) for size in (4, 4 * _KIB)]
            wanted.append((64 * _MIB, "slipstream", "mpi", 1.5))
        if n == 2:
            wanted += [(size, "slipstream", "mpi", 0.5) for size in (4, 4 * _KIB)]
        for nbytes, name, peer, bound in wanted:
            value = rows.get(nbytes, {}).get(name, {}).get("ratio", {}).get(peer)
            if value is not None:
                text = f"{n} processes, {size_text(nbytes)}: {name}, speed relative to {peer}"
                targets.append(Target(text, value, bound))
        targets.append(Target(f"{n} processes: idle engine, % of a core", 100 * job["idle_cpu"], 1.0, False))
    return targets


def size_text(nbytes: int) -> str:
    """``4 B``, ``64 KiB``, ``1.5 MiB``."""
    for unit, name in ((_MIB, "MiB"), (_KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} B"


def _time_text(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms"


def _job_table(job: Mapping[str, Any]) -> str:
    """One job as a Markdown table."""
    head = ["size", "contender", "median", "min", "p90"]
    head += ["algbw GB/s", "busbw GB/s", "vs gloo", "vs mpi", "limit"]
    rows = []
    for size in job["sizes"]:
        first = True
        for name, row in size["contenders"].items():
            ratio = row["ratio"]
            ratios = [f"{ratio[peer]:.2f}x" if peer in ratio else "" for peer in ("gloo", "mpi")]
            times = [_time_text(row[key]) for key in ("median", "min", "p90")]
            speeds = [f"{row[key] / 1e9:.3g}" for key in ("algbw", "busbw")]
            limit = _time_text(size["limit"]) if size["limit"] is not None and first else ""
            rows.append((size_text(size["bytes"]) if first else "", name, *times, *speeds, *ratios, limit))
            first = False
    return table(head, rows)


def _target_table(targets: Sequence[Target]) -> str:
    """The targets as a Markdown table."""
    rows = []
    for target in targets:
        unit = "x" if target.at_least else " %"
        bound = f">= {target.bound:g}x" if target.at_least else f"< {target.bound:g} %"
        value = f"{target.value:.2f}{unit}"
        rows.append((target.text, bound, value, "met" if target.met else "NOT MET"))
    return table(("target", "wanted", "measured", ""), rows)


def record_text(record: Mapping[str, Any], targets: Sequence[Target]) -> str:
    """A whole run in Markdown: the machine, what was missing, the tables."""
    host, versions = record["machine"], record["versions"]
    parts = [
        f"{record['date']}: {host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB, Linux {host['kernel']}, "
        f"load before the run {host['load_1min']}; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + f"; {record['repeats']} repeats."
    ]
    parts += [f"Missing: {name} ({reason})." for name, reason in record["missing"].items()]
    for job in record["jobs"]:
        memory = ", ".join(f"{kind} {rate / 1e9:.1f}" for kind, rate in job["memory"].items())
        parts.append(
            f"{job['processes']} processes, {record['transport']}; memory, all ranks at once, GB/s: {memory}."
        )
        parts.append(_job_table(job))
    if targets:
        parts.append(_target_table(targets))
    return "\n\n".join(parts)


def replace_results(document: str, text: str) -> str:
    """``document`` with ``text`` between its marks; ValueError if it has none."""
    before, begin, rest = document.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise ValueError(f"the document lacks {_BEGIN} and {_END}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    )
