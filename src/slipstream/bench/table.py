"""The rows people read: plain text as it is measured, and Markdown of a whole record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.base.units import format_rate
from slipstream.bench.collectives import size_text

__all__ = [
    "columns",
    "encryption",
    "fitting",
    "grid",
    "heading",
    "markdown",
    "narrow",
    "plain_row",
    "rows",
    "time_text",
    "widths",
]

_NUMBERS = 8  # characters of a number
_DISPENSABLE = ("type", "redop", "root", "count", "algbw GB/s", "min", "p90", "limit")  # first to last
_QUARTILES = 21  # characters of a ratio with its quartiles, and without
_RATIO = 8


def time_text(seconds: float | None) -> str:
    """``4.7 us``, ``1.25 ms``, ``1.30 s``."""
    if seconds is None:
        return ""
    for unit, name, digits in ((1.0, "s", 2), (1e-3, "ms", 2)):
        if seconds >= unit:
            return f"{seconds / unit:.{digits}f} {name}"
    return f"{seconds * 1e6:.1f} us"


def columns(record: Mapping[str, Any]) -> list[str]:
    """The heads of `rows`: a column for each peer that was asked for and is there."""
    head = ["size (B)", "count", "type"]
    head += ["redop"] if record["op"] else []
    head += ["root"] if record["root"] is not None else []
    head += ["contender", "median", "min", "p90", "algbw GB/s", "busbw GB/s", "#wrong"]
    return head + [f"vs {peer}" for peer in record["peers"]] + ["limit", "of limit"]


def rows(record: Mapping[str, Any], size: Mapping[str, Any], *, brief: bool = False) -> list[list[str]]:
    """One row a contender, as text; ``brief``: ratios without their quartiles."""
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
        line += [_ratio_text(row.get("ratio", {}).get(peer), brief) for peer in record["peers"]]
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


def _ratio_text(ratio: Mapping[str, float] | None, brief: bool) -> str:
    """``3.10x [2.95 3.21]``: of medians, and the quartiles over the repeats."""
    if ratio is None:
        return ""
    if brief:
        return f"{ratio['value']:.2f}x"
    return f"{ratio['value']:.2f}x [{ratio['low']:.2f} {ratio['high']:.2f}]"


def widths(record: Mapping[str, Any], *, brief: bool = False) -> list[int]:
    """Characters of each column, before any row is known."""
    least = {"size (B)": 10, "count": 10, "type": 8, "median": 9, "min": 9, "p90": 9}
    least |= {"limit": 9, "#wrong": 6, "redop": 5, "root": 4}
    least["contender"] = max(map(len, ("slipstream", *record["peers"])))
    ratio = _RATIO if brief else _QUARTILES
    return [
        max(len(name), least.get(name, ratio if name.startswith("vs ") else _NUMBERS))
        for name in columns(record)
    ]


def narrow(record: Mapping[str, Any], width: int) -> tuple[list[int], bool]:
    """Which columns of lines that are printed as they come fit ``width`` characters, and whether ratios are brief."""
    head = columns(record)
    for brief in (False, True):
        sizes = widths(record, brief=brief)
        line = ["x" * size for size in sizes]
        line[-1] = "100 % (cached)"
        kept = fitting(head, [line], width + 2, between=2)
        if sum(len(line[at]) + 2 for at in kept) <= width + 2:
            return kept, brief
    kept = [at for at in kept if head[at] != "of limit"]
    while len(kept) > 1 and sum(len(line[at]) + 2 for at in kept) > width + 2:
        kept.pop()  # a peer's ratio: its own time has a row of its own
    return kept, True


def plain_row(cells: Sequence[str], sizes: Sequence[int]) -> str:
    """Cells aligned to the right; a cell too many, or too long, follows as it is."""
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, sizes, strict=False)).rstrip()


def fitting(
    head: Sequence[str],
    lines: Sequence[Sequence[str]],
    width: int,
    between: int,
    dispensable: Sequence[str] = _DISPENSABLE,
) -> list[int]:
    """Which columns to show in ``width`` characters, ``between`` after each: the ``dispensable`` ones make way in turn.

    Lines that end early hold a text, not columns, and need no more space.
    """
    kept, lines = list(range(len(head))), [line for line in lines if len(line) == len(head)]
    for least in dispensable:
        sizes = {at: max(len(line[at]) for line in (head, *lines)) for at in kept}
        if sum(sizes.values()) + between * len(kept) <= width:
            break
        kept = [at for at in kept if head[at] != least]
    return kept


def encryption(record: Mapping[str, Any]) -> list[str]:
    """What a heading says of it; nothing for older records, which do not know."""
    known = record.get("encrypted")
    return [] if known is None else ["slipstream's TCP " + ("encrypted" if known else "not encrypted")]


def heading(record: Mapping[str, Any]) -> list[str]:
    """Lines that say what was measured, where, with which versions, and what is missing."""
    host = record["machine"]
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
    machine = f"{host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB, Linux {host['kernel']}"
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines = [
        ", ".join(what) + f"; {record['repeats']} repeats after {record['warmup']} that are not counted",
        f"{record['date']}: {machine}, load before the run {host['load_1min']}; {versions}",
    ]
    if record["memory"]:
        rates = ", ".join(f"{kind} {rate / 1e9:.1f}" for kind, rate in record["memory"].items())
        lines.append(f"memory, all ranks at once, GB/s: {rates}")
    lines += [f"missing: {name} ({reason})" for name, reason in record["missing"].items()]
    lines += [f"{name} is measured on memory {memory}" for name, memory in record["memories"].items()]
    return lines


def markdown(record: Mapping[str, Any]) -> str:
    """A record in Markdown: what was measured and where, then the table, each size once."""
    head = [name for name in columns(record) if name not in ("count", "type", "redop", "root")]
    keep = [columns(record).index(name) for name in head]
    head[0] = "size"
    lines: list[list[str]] = []
    for size in record["sizes"]:
        for number, cells in enumerate(rows(record, size)):
            full = cells + [""] * (len(columns(record)) - len(cells))
            line = [full[at] for at in keep]
            line[0] = "" if number else (size_text(size["bytes"]) if size["bytes"] else "-")
            lines.append(line)
    what = record["dtype"] + (f", {record['op']}" if record["op"] else "")
    if record["root"] is not None:
        what += f", root {record['root']}"
    text = heading(record)
    text[0] += "." if record["collective"] == "barrier" else f"; {what}."
    text[1:] = [f"{line}." for line in text[1:]]
    return "\n\n".join([*text, grid(head, lines)])


def grid(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    sizes = [max(len(line[i]) for line in (head, *lines)) for i in range(len(head))]
    everything = [head, ["-" * width for width in sizes], *lines]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, sizes, strict=True)) + " |"
        for line in everything
    )
