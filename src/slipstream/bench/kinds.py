"""The two kinds of record that ``slipstream bench`` makes: what is shown of each, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.bench.collective import plot as collective_plot
from slipstream.bench.collective import report as collective_report
from slipstream.bench.report import Report
from slipstream.bench.train import plot as train_plot
from slipstream.bench.train import report as train_report

__all__ = ["KINDS", "Kind", "kind_of"]


@dataclass(frozen=True)
class Kind:
    """What is shown on a terminal, what on a page, and what draws the picture."""

    report: Callable[[Mapping[str, Any]], Report]
    page: Callable[[Mapping[str, Any]], Report]
    draw: Callable[[Mapping[str, Any], Path], None]


KINDS = {
    "collective": Kind(collective_report.report, collective_report.page, collective_plot.draw),
    "train": Kind(train_report.report, train_report.report, train_plot.draw),
}


def kind_of(record: Mapping[str, Any]) -> Kind:
    """The kind of a record; ValueError for one that `slipstream bench` did not make."""
    name = record.get("benchmark")
    if name not in KINDS:
        raise ValueError(f"a record of {name!r}, not of {' or '.join(KINDS)}")
    return KINDS[name]
