"""A record of a collective as people read it: row by row as it is measured, and whole for a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from slipstream.base.units import format_rate
from slipstream.bench.record import origin
from slipstream.bench.report import QUARTILES, Report, encryption, ratio_text
from slipstream.bench.table import size_text, time_text

__all__ = ["page", "report"]

_DISPENSABLE = ("type", "redop", "root", "count", "algbw GB/s", "min", "p90", "limit")
_ON_PAGES = ("count", "type", "redop", "root")  # columns that a page has in its heading, or does without


def report(record: Mapping[str, Any]) -> Report:
    """The record so far: a line for each size and contender."""
    lines = [line for size in record["sizes"] for line in _lines(record, size)]
    least = {"size (B)": 10, "count": 10, "type": 8, "median": 9, "min": 9, "p90": 9, "limit": 9}
    least |= {"of limit": len("100 % (cached)"), "contender": max(map(len, record["contenders"]))}
    least |= {f"vs {peer}": QUARTILES for peer in record["peers"]}
    return Report(_heading(record), _columns(record), lines, dispensable=_DISPENSABLE, least=least)


def page(record: Mapping[str, Any]) -> Report:
    """The same for a page: each size once."""
    whole = report(record)
    kept = [at for at, name in enumerate(whole.head) if name not in _ON_PAGES]
    lines, previous = [], ""
    for cells in whole.lines:
        full = [*cells, *[""] * (len(whole.head) - len(cells))]
        size = size_text(int(cells[0])) if int(cells[0]) else "-"
        lines.append(["" if cells[0] == previous else size, *(full[at] for at in kept[1:])])
        previous = cells[0]
    heading = list(whole.heading)
    if record["collective"] != "barrier":
        op = f", {record['op']}" if record["op"] else ""
        root = f", root {record['root']}" if record["root"] is not None else ""
        heading[0] += f"; {record['dtype']}{op}{root}"
    head = ["size", *(whole.head[at] for at in kept[1:])]
    return dataclasses.replace(whole, heading=heading, head=head, lines=lines)


def _columns(record: Mapping[str, Any]) -> list[str]:
    """A column for each peer that was asked for and is there."""
    head = ["size (B)", "count", "type"]
    head += ["redop"] if record["op"] else []
    head += ["root"] if record["root"] is not None else []
    head += ["contender", "median", "min", "p90", "algbw GB/s", "busbw GB/s", "#wrong"]
    return head + [f"vs {peer}" for peer in record["peers"]] + ["limit", "of limit"]


def _lines(record: Mapping[str, Any], size: Mapping[str, Any]) -> list[list[str]]:
    lines = []
    for name, row in size["contenders"].items():
        line = [str(size["bytes"]), str(size["count"]), record["dtype"] if size["bytes"] else ""]
        line += [record["op"]] if record["op"] else []
        line += [str(record["root"])] if record["root"] is not None else []
        line.append(name)
        if "unsupported" in row:
            lines.append([*line, f"unsupported: {row['unsupported']}"])
            continue
        line += [time_text(row[key]) for key in ("median", "min", "p90")]
        line += ["" if row[key] is None else f"{row[key] / 1e9:.3g}" for key in ("algbw", "busbw")]
        line.append("n/a" if row["wrong"] is None else str(row["wrong"]))
        line += [ratio_text(row.get("ratio", {}).get(peer)) for peer in record["peers"]]
        lines.append([*line, *_limit_texts(size["limit"], row["median"])])
    return lines


def _limit_texts(limit: Mapping[str, Any] | None, seconds: float) -> list[str]:
    """The limit, and which part of the possible speed was reached.

    More than all of it only out of caches, or while a batch fits what a link lets through at once.
    """
    if limit is None:
        return ["", ""]
    share = 100 * limit["seconds"] / seconds
    how = " (cached)" if limit["of"] == "memory" else " (burst)"
    return [time_text(limit["seconds"]), f"{share:.0f} %{how if share > 100 else ''}"]


def _heading(record: Mapping[str, Any]) -> list[str]:
    """Lines that say what was measured, where, with which versions, and what is missing."""
    hosts = len(set(record["hosts"]))
    what = [record["collective"], f"{record['ranks']} ranks on {hosts} host{'s' if hosts > 1 else ''}"]
    if record["in_place"]:
        what.append("in place")
    what.append(f"transport {record['transport']}")
    if record["lanes"]:
        what.append(f"{record['lanes']} lanes")
    what += encryption(record)
    if record["lab"]:
        what.append("in a lab")
    if record["link_rate"] and hosts > 1:
        what.append(f"links of {format_rate(record['link_rate'])}")
    lines = [
        ", ".join(what) + f"; {record['repeats']} repeats after {record['warmup']} that are not counted",
        origin(record),
    ]
    if record["memory"]:
        rates = ", ".join(f"{kind} {rate / 1e9:.1f}" for kind, rate in record["memory"].items())
        lines.append(f"memory, all ranks at once, GB/s: {rates}")
    lines += [f"missing: {name} ({reason})" for name, reason in record["missing"].items()]
    lines += [f"{name} is measured on memory {memory}" for name, memory in record["memories"].items()]
    return lines
