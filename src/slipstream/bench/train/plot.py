"""The breakdown of a step as a picture: compute, exposed communication on top, and what of it was hidden."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["draw"]

_COMPUTE, _EXPOSED = "#4878a8", "#d1605e"


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Writes a record of `summary.summarise` as a picture; the suffix of ``path`` says in which format (svg, png)."""
    rows = dict(reversed(record["contenders"].items()))  # the first at the top
    names = list(rows)
    plain = 1e3 * record["plain"]
    exposed = [1e3 * row["exposed"] for row in rows.values()]
    covered = [1e3 * min(row["hidden"], record["plain"]) for row in rows.values()]
    figure = Figure(figsize=(8, 1.4 + 0.5 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
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
        end = plain + 1e3 * row["exposed"]
        axes.text(end, place, f" {1e3 * row['step']['median']:.0f} ms", va="center")
    if record["limit"]:
        axes.axvline(1e3 * _limit(record["limit"]), color="black", linestyle="--", label="limit")
    axes.set_xlabel("ms per step, median")
    axes.set_title(
        f"{record['options']['model']}, {record['ranks']} ranks, hosts: {record['hosts']}", loc="left"
    )
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path)


def _limit(limit: Mapping[str, float]) -> float:
    """What no contender can beat: a record may be older than reducers."""
    return limit.get("step_beside_reducers", limit["step"])
