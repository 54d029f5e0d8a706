"""Targets of a benchmark, and whether records reach them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.bench.table import grid

__all__ = ["Verdict", "at_least", "verdict_table"]


@dataclass(frozen=True)
class Verdict:
    """A target in words, what is wanted and what was measured, and whether that is enough."""

    text: str
    wanted: str
    measured: str
    met: bool


def at_least(text: str, value: float, wanted: float, unit: str = "x", form: str = ".3g") -> Verdict:
    """The verdict on a figure that ``wanted`` is the least for."""
    return Verdict(text, f">= {wanted:g}{unit}", f"{value:{form}}{unit}", value >= wanted)


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts in Markdown."""
    rows = [(one.text, one.wanted, one.measured, "met" if one.met else "NOT MET") for one in verdicts]
    return grid(("target", "wanted", "measured", ""), rows)
