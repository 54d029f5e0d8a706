"""Bandwidth over size, a line for each contender."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.bench.collective.catalogue import bus_factor
from slipstream.bench.plot import picture
from slipstream.bench.samples import quartiles
from slipstream.bench.table import size_text

__all__ = ["Line", "bandwidth_lines", "draw", "limit_line"]

Line = dict[str, list[float]]


def bandwidth_lines(record: Mapping[str, Any]) -> dict[str, Line]:
    """By contender: ``x`` bytes, ``y`` bus bandwidth of the median, ``low`` and ``high`` of the quartiles (GB/s).

    For a barrier, which has no bytes, there are no lines.
    """
    ranks = len(record["hosts"])
    factor = bus_factor(record["collective"], ranks) / 1e9
    lines: dict[str, Line] = {}
    for size in record["sizes"]:
        for name, row in size["contenders"].items():
            if "median" not in row or not size["bytes"]:
                continue
            line = lines.setdefault(name, {"x": [], "y": [], "low": [], "high": []})
            quick, slow = quartiles(row["samples"])
            line["x"].append(size["bytes"])
            line["y"].append(size["bytes"] * factor / row["median"])
            line["low"].append(size["bytes"] * factor / slow)
            line["high"].append(size["bytes"] * factor / quick)
    return lines


def limit_line(record: Mapping[str, Any]) -> Line:
    """The bus bandwidth (GB/s) that the limit of each size allows, where one is known."""
    factor = bus_factor(record["collective"], len(record["hosts"])) / 1e9
    known = [size for size in record["sizes"] if size["limit"] is not None]
    return {
        "x": [size["bytes"] for size in known],
        "y": [size["bytes"] * factor / size["limit"]["seconds"] for size in known],
    }


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Draws the record into ``path``. Raises ValueError as `slipstream.bench.plot.check_plot` does."""
    sizes = sorted({size["bytes"] for size in record["sizes"]})
    limit = limit_line(record)
    with picture(path, 7, 4.2) as axes:
        for name, line in bandwidth_lines(record).items():
            (drawn,) = axes.plot(line["x"], line["y"], marker="o", markersize=4, label=name)
            axes.fill_between(line["x"], line["low"], line["high"], color=drawn.get_color(), alpha=0.2, lw=0)
        if limit["x"]:
            axes.plot(limit["x"], limit["y"], linestyle="--", marker="_", color="black", label="limit")
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [size_text(size) for size in sizes], rotation=30 if len(sizes) > 6 else 0)
        axes.set_xticks([], minor=True)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("bus bandwidth, GB/s")
        axes.set_title(f"{record['collective']}, {record['ranks']} ranks, {record['dtype']}", fontsize=11)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
