"""The breakdown of a step as a picture: compute, exposed communication on top, and what of it was hidden."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.bench.plot import picture

__all__ = ["draw"]

_COMPUTE, _EXPOSED = "#4878a8", "#d1605e"


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Draws the record into ``path``. Raises ValueError as `slipstream.bench.plot.check_plot` does."""
    rows = dict(reversed(record["contenders"].items()))  # the first at the top
    with picture(path, 8, 1.4 + 0.5 * len(rows)) as axes:
        _bars(axes, rows, 1e3 * record["plain"])
        if record["limit"]:
            axes.axvline(1e3 * _limit(record["limit"]), color="black", linestyle="--", label="limit")
        axes.set_xlabel("ms per step, median")
        hosts = len(set(record["hosts"]))
        axes.set_title(f"{record['options']['model']}, {record['ranks']} ranks, hosts: {hosts}", loc="left")
        axes.margins(x=0.12)
        axes.set_xlim(left=0)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.figure.legend(loc="outside lower center", ncols=4, frameon=False)


def _bars(axes: Any, rows: Mapping[str, Any], plain: float) -> None:
    """A bar for each contender, in milliseconds; ``plain``: what a step takes that exchanges nothing."""
    names = list(rows)
    exposed = [1e3 * row["exposed"] for row in rows.values()]
    covered = [min(1e3 * row["hidden"], plain) for row in rows.values()]
    axes.barh(names, plain, color=_COMPUTE, label="compute")
    axes.barh(names, exposed, left=plain, color=_EXPOSED, label="exposed communication")
    axes.barh(
        names,
        covered,
        left=[plain - one for one in covered],
        color=_COMPUTE,
        edgecolor="white",
        hatch="///",
        linewidth=0,
        label="hidden communication",
    )
    for place, row in enumerate(rows.values()):
        axes.text(plain + exposed[place], place, f" {1e3 * row['step']['median']:.0f} ms", va="center")


def _limit(limit: Mapping[str, float]) -> float:
    """What no contender can beat: a record may be older than reducers."""
    return limit.get("step_beside_reducers", limit["step"])
