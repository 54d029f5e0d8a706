"""Targets of a benchmark, and whether records reach them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.bench.table import grid

__all__ = ["Judgement", "at_least", "at_most", "judgement_table"]


@dataclass(frozen=True)
class Judgement:
    """A target in words, what is wanted and what was measured, and whether that is enough."""

    text: str
    wanted: str
    measured: str
    met: bool


def at_least(text: str, value: float, wanted: float, unit: str = "x", form: str = ".3g") -> Judgement:
    """The judgement on a figure that ``wanted`` is the least for."""
    return Judgement(text, f">= {wanted:g}{unit}", f"{value:{form}}{unit}", value >= wanted)


def at_most(text: str, value: float, wanted: float, unit: str = "x", form: str = ".3g") -> Judgement:
    """The judgement on a figure that ``wanted`` is the most for."""
    return Judgement(text, f"<= {wanted:g}{unit}", f"{value:{form}}{unit}", value <= wanted)


def judgement_table(judgements: Sequence[Judgement]) -> str:
    """The judgements in Markdown."""
    rows = [(one.text, one.wanted, one.measured, "met" if one.met else "NOT MET") for one in judgements]
    return grid(("target", "wanted", "measured", ""), rows)
