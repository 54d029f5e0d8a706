"""What a run was like, in numbers and in words: `report` makes it of the ranks' snapshots, `text` shows it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from slipstream.base.units import format_size
from slipstream.observe.metrics import Snapshot
from slipstream.observe.straggler import find_straggler

__all__ = ["advice", "report", "text"]

_MUCH = 0.25  # of a step: exposed communication that is worth doing something about
_TCP = "tcp"
_COMPRESSING = {
    "slipstream.tensorflow",
    "slipstream.keras",
    "slipstream.tf_keras",
    "slipstream.mxnet",
}  # faces whose optimizers can

Report = dict[str, Any]


def report(snapshots: Sequence[Snapshot | None], job: str = "job") -> Report:
    """The summary of a job, of the snapshots of its ranks in their order (None: a rank that did not answer).

    Times in seconds, rates in bytes a second; what is told of a step is the median of the ranks' medians.
    """
    known = [one for one in snapshots if one]
    straggler = find_straggler(known)
    found: Report = {
        "job": job,
        "ranks": len(snapshots),
        "hosts": len({one["machine"] for one in known}),
        "faces": sorted({face for one in known for face in one["faces"]}),
        "unknown": [rank for rank, one in enumerate(snapshots) if not one],
        "seconds": max((one["time"] for one in known), default=0.0),
        "steps": _steps(known),
        "operations": _operations(known),
        "bytes": sum(cell["bytes"] for one in known for cell in one["operations"]),
        "wire_bytes": sum(
            link["sent"] for one in known for link in one["links"] if link["transport"] == _TCP
        ),
        "local_bytes": sum(
            link["sent"] for one in known for link in one["links"] if link["transport"] != _TCP
        ),
        "saved_bytes": sum(one["saved_bytes"] for one in known),
        "reducers": max((one["reducers"] for one in known), default=0),
        "stalls": sum(one["stalls"] for one in known),
        "retransmits": _sum_of_links(known, "retransmits"),
        "lost_connections": _sum_of_links(known, "lost"),
        "straggler": None if straggler is None else asdict(straggler),
    }
    found["advice"] = advice(found)
    return found


def _sum_of_links(snapshots: Sequence[Snapshot], name: str) -> int:
    return sum(link[name] for one in snapshots for link in one["links"])


def _steps(snapshots: Sequence[Snapshot]) -> dict[str, Any] | None:
    timed = [one["steps"] for one in snapshots if one["steps"]["count"] > 0]
    if not timed:
        return None
    found: dict[str, Any] = {"count": max(one["count"] for one in timed)}
    for name in ("median", "p90", "compute", "exposed", "hidden"):
        found[name] = median(one["all"][name] for one in timed)
    found["exposed_share"] = found["exposed"] / found["median"] if found["median"] else 0.0
    return found


def _operations(snapshots: Sequence[Snapshot]) -> list[dict[str, Any]]:
    """By collective and size class: the sums of all ranks, and the bandwidths that one rank sees."""
    sums: dict[tuple[str, int], dict[str, Any]] = {}
    for one in snapshots:
        for cell in one["operations"]:
            key = cell["collective"], cell["largest"]
            found = sums.setdefault(key, {"count": 0, "bytes": 0, "bus_bytes": 0, "seconds": 0.0, "ranks": 0})
            found["ranks"] += 1
            for name in ("count", "bytes", "bus_bytes", "seconds"):
                found[name] += cell[name]
    rows = []
    for (collective, largest), found in sorted(sums.items(), key=lambda item: -item[1]["seconds"]):
        seconds = found["seconds"]
        rows.append(
            {
                "collective": collective,
                "largest": largest,
                "count": found["count"] / found["ranks"],
                "bytes": found["bytes"] / found["ranks"],
                "seconds": seconds / found["ranks"],
                "algbw": found["bytes"] / seconds if seconds else 0.0,
                "busbw": found["bus_bytes"] / seconds if seconds else 0.0,
            }
        )
    return rows


def advice(found: Report) -> list[str]:
    """What to try, most useful first, as far as the numbers of a report say."""
    tries = []
    straggler, steps = found["straggler"], found["steps"]
    if straggler is not None and straggler["cause"] == "compute":
        tries.append(
            f"look at what rank {straggler['ranks'][0]} computes: other programs on {straggler['host']}, fewer or "
            "slower cores, more data in its batches, or its input"
        )
    elif straggler is not None and len(straggler["ranks"]) == 2:
        tries.append(
            "look at the network between these two (a bad cable or a shared port has this effect); on the host of "
            f"rank {straggler['ranks'][1]}, run: slipstream check --link {straggler['host']}"
        )
    elif straggler is not None and straggler["cause"] == "network":
        tries.append(
            f"look at the network of {straggler['host']} (a bad cable or a shared port has this effect); on another "
            f"host, run: slipstream check --link {straggler['host']}"
        )
    elif straggler is not None:
        tries.append(f"look at what rank {straggler['ranks'][0]} does before its operations")
    if steps and found["hosts"] > 1:
        waits = 0.0 if straggler is None else straggler["seconds"] or 0.0  # for another rank's compute
        rest = steps["exposed"] - waits
        if rest > 0 and rest >= _MUCH * steps["median"]:
            tries.insert(0 if rest > waits > 0 else len(tries), _shorten(found, rest / steps["median"]))
    small = [row for row in found["operations"] if row["largest"] == 4096 and row["count"] > 0]
    if steps and small and sum(row["count"] for row in small) > 100 * steps["count"]:
        tries.append("there are more than 100 small operations in a step: join them, in buckets or groups")
    if found["lost_connections"]:
        tries.append(
            f"{found['lost_connections']} connections were lost and repaired: look at the network's errors"
        )
    return tries


def _shorten(found: Report, share: float) -> str:
    """``share``: of a step, that is exposed communication."""
    steps = found["steps"]
    hidden = (
        ", and hardly any of it is hidden behind compute" if steps["hidden"] < steps["exposed"] / 4 else ""
    )
    return f"communication takes {share:.0%} of a step{hidden}: try {_any_of(_ways(found))}"


def _ways(found: Report) -> list[str]:
    """What makes the communication between hosts shorter, as far as it acts on what the program calls."""
    ways = []
    if not found["saved_bytes"]:
        amounts = "bf16 (half of the bytes) or int8 (a quarter)"
        ways.append(f"--wire {amounts}" if found["faces"] else f"all_reduce(..., wire=...) with {amounts}")
    if "slipstream.torch" in found["faces"]:
        ways.append(
            "compression= (docs/compression.md) and overlap_forward= (docs/overlap.md) of DistributedOptimizer"
        )
    elif _COMPRESSING & set(found["faces"]):
        ways.append("compression= of DistributedOptimizer (docs/compression.md)")
    if "torch.distributed" in found["faces"]:
        ways.append("a hook of slipstream.torch.comm_hooks (docs/compression.md)")
    if found["hosts"] > 2 and not found["reducers"]:  # between two hosts they save nothing
        ways.append("reducers (docs/reducers.md)")
    return [*ways, "larger batches"]


def _any_of(ways: list[str]) -> str:
    return " or ".join([part for part in (", ".join(ways[:-1]), ways[-1]) if part])


def text(found: Report) -> str:
    """The report as lines for people."""
    ranks = f"{_counted(found['ranks'], 'rank')} on {_counted(found['hosts'], 'host')}"
    reducers = f", {_counted(found['reducers'], 'reducer')}" if found["reducers"] else ""
    lines = [f"slipstream: summary of job {found['job']!r}: {ranks}{reducers}, {found['seconds']:.1f} s"]
    if found["unknown"]:
        lines.append(
            f"  no answer      rank{'s' * (len(found['unknown']) > 1)} {', '.join(map(str, found['unknown']))}"
        )
    lines += _text_of_steps(found["steps"])
    wire = f"{format_size(found['wire_bytes'])} over the network"
    local = f"{format_size(found['local_bytes'])} within hosts"
    saved = f", {format_size(found['saved_bytes'])} saved by wire types" if found["saved_bytes"] else ""
    lines.append(f"  sent           {wire}, {local}{saved}")
    lines.append(
        f"  trouble        {found['stalls']} stalls, {found['retransmits']} TCP retransmits, "
        f"{found['lost_connections']} lost connections"
    )
    lines += _text_of_operations(found["operations"])
    straggler = found["straggler"]
    lines.append(f"  straggler      {straggler['text'] if straggler else 'none'}")
    lines += [f"  try            {one}" for one in found["advice"]]
    return "\n".join(lines)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _text_of_steps(steps: dict[str, Any] | None) -> list[str]:
    if steps is None:
        return ["  steps          none were marked (slipstream.mark_step() marks them)"]
    step = steps["median"] or 1.0
    return [
        f"  steps          {steps['count']}, median {_ms(steps['median'])}, 90 % within {_ms(steps['p90'])}",
        f"  compute        {_ms(steps['compute'])} of a step ({steps['compute'] / step:.0%})",
        f"  communication  {_ms(steps['exposed'])} exposed ({steps['exposed'] / step:.0%}), {_ms(steps['hidden'])} "
        "hidden behind compute",
    ]


def _text_of_operations(rows: Sequence[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    heads = ("operation", "size", "count", "bytes", "time", "algbw", "busbw")
    cells = [heads, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(heads))]
    lines = []
    for first, *rest in cells:
        aligned = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join(["", first.ljust(max(13, widths[0])), *aligned]))
    lines[0] += "   (per rank)"
    return lines


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["collective"],
        f"<= {format_size(row['largest'])}" if row["largest"] else "larger",
        f"{row['count']:.0f}",
        format_size(row["bytes"]),
        _ms(row["seconds"]),
        f"{format_size(row['algbw'])}/s",
        f"{format_size(row['busbw'])}/s",
    )


def _ms(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 10 else f"{seconds * 1e3:.4g} ms"
