"""Writes the figures of README.md from the newest records in benchmarks/results: `python benchmarks/readme.py`.

Every figure of speed in the README stands between its marks (`<!-- figures: begin -->`), and is a ratio of two medians
of one record: how many times as long the other takes as slipstream. `--check` changes nothing, and ends with code 1 if
the page is not what the records say.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.base.units import format_rate
from slipstream.bench.page import replace_between
from slipstream.bench.record import newest
from slipstream.bench.table import grid

__all__ = ["figures", "main"]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_KIB, _MIB = 1 << 10, 1 << 20
_UNEQUAL = "2 hosts, four unequal paths"
Row = tuple[str, str, str, str]  # what, against gloo, against Open MPI, the page that has the whole record


def _ratio(record: Mapping[str, Any], nbytes: int, name: str, peer: str) -> float:
    size = next(one for one in record["sizes"] if one["bytes"] == nbytes)
    return float(size["contenders"][name]["ratio"][peer]["value"])


def _text(*ratios: float) -> str:
    """``6.0x``, or ``0.99x to 1.04x`` where several that differ are given."""
    low, high = (f"{one:.2f}x" if one < 10 else f"{one:.0f}x" for one in (min(ratios), max(ratios)))
    return low if low == high else f"{low} to {high}"


def _collective(what: str, record: Mapping[str, Any], sizes: Sequence[int], name: str = "slipstream") -> Row:
    cells = [_text(*(_ratio(record, size, name, peer) for size in sizes)) for peer in ("gloo", "mpi")]
    return (what, *cells, "[benchmarks](docs/benchmarks.md)")  # type: ignore[return-value]


def _one_host(ranks: int, record: Mapping[str, Any]) -> list[Row]:
    host = f"one host, {ranks} processes"
    return [
        _collective(f"{host}: 64 MiB", record, [64 * _MIB]),
        _collective(
            f"{host}: 64 MiB in memory of `slipstream.empty`", record, [64 * _MIB], "slipstream-shared"
        ),
        _collective(f"{host}: 4 KiB, through PyTorch", record, [4 * _KIB], "slipstream-torch"),
    ]


def _network(record: Mapping[str, Any]) -> list[Row]:
    hosts = f"{len(set(record['hosts']))} hosts, equal links of {format_rate(record['link_rate'])}"
    large = [one["bytes"] for one in record["sizes"] if one["bytes"] >= _MIB]
    return [
        _collective(f"{hosts}: 4 KiB", record, [4 * _KIB]),
        _collective(f"{hosts}: 64 KiB", record, [64 * _KIB]),
        _collective(f"**{hosts}: 1 MiB to 64 MiB**", record, large),
    ]


def _steps(records: Sequence[Mapping[str, Any]]) -> Row:
    ratios = [float(one["contenders"]["slipstream"]["ratio"]["gloo"]["value"]) for one in records]
    names = " and ".join(one["options"]["model"] for one in records)
    rate = format_rate(records[0]["limit"]["link_rate"])
    what = f"**{len(set(records[0]['hosts']))} hosts, equal links of {rate}: training steps of {names}**"
    return (what, _text(*ratios), "", "[benchmarks](docs/benchmarks.md)")


def _paths(record: Mapping[str, Any]) -> Row:
    ours, gloo = (record["paths"][name] for name in ("pull", "gloo"))
    ratio = statistics.median(ours) / statistics.median(gloo)
    what = f"{_UNEQUAL} (100 to 800 Mbit/s): 64 MiB"
    return (what, _text(ratio), "", "[benchmarks](docs/benchmarks.md)")


def _paths_note(record: Mapping[str, Any]) -> str:
    ours, gloo = (
        f"{min(shares):.0f} to {max(shares):.0f} %"
        for shares in (record["paths"]["pull"], record["paths"]["gloo"])
    )
    return (
        f"{_UNEQUAL}: slipstream uses {ours} of the paths' total bandwidth, gloo {gloo}, depending on which path its\n"
        "connection gets."
    )


def _reducers(record: Mapping[str, Any]) -> list[Row]:
    lab, page = record["four"], "[reducers](docs/reducers.md)"

    def median(size: Mapping[str, Any], name: str) -> float:
        return statistics.median(size["contenders"][name]["samples"])

    ratios = [median(size, "gloo") / median(size, "reducers-4") for size in lab["sizes"]]
    where = f"{lab['workers']} hosts beside {len(lab['reducer_rates'])} reducers, links of {format_rate(lab['rate'])}"
    steps = record["train"]
    trained = [float(one["contenders"]["slipstream"]["ratio"]["gloo"]["value"]) for one in steps.values()]
    return [
        (f"{where}: 16 MiB to 64 MiB", _text(*ratios), "", page),
        (f"{where}: training steps of {' and '.join(steps)}", _text(*trained), "", page),
    ]


def _ddp(record: Mapping[str, Any]) -> Row:
    ratios = [float(job["ratio"]) for job in record["jobs"]]
    return (
        "one host, 2 and 4 processes: steps of a small GPT under DDP",
        _text(*ratios),
        "",
        "[benchmarks](docs/benchmarks.md)",
    )


def figures(results: Path = RESULTS) -> str:
    """The table of the README, as Markdown."""
    kinds = ["all_reduce-np2", "all_reduce-np4", "all_reduce-lab", "lanes", "reducers", "ddp"]
    kinds += ["train-resnet50-lab", "train-bert-base-lab"]
    found = {kind: newest(kind, results) for kind in kinds}
    rows = [
        *_one_host(2, found["all_reduce-np2"]),
        *_one_host(4, found["all_reduce-np4"]),
        _ddp(found["ddp"]),
        _paths(found["lanes"]),
        *_reducers(found["reducers"]),
        *_network(found["all_reduce-lab"]),
        _steps([found["train-resnet50-lab"], found["train-bert-base-lab"]]),
    ]
    dates = sorted({record["date"] for record in found.values()})
    machine = found["all_reduce-np2"]["machine"]
    days = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
    about = (
        f"{days}, {machine['cpu']}, {machine['cores']} cores; several hosts are those of a lab on that machine. "
        "Above 1 slipstream is faster."
    )
    head = [
        "all-reduce of float32, unless it says otherwise",
        "gloo's time / ours",
        "Open MPI's / ours",
        "all of it",
    ]
    return f"{about}\n\n{grid(head, rows)}\n\n{_paths_note(found['lanes'])}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Renews the page, or checks it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; code 1 if the page is not current"
    )
    given = parser.parse_args(arguments)
    page = ROOT / "README.md"
    old = page.read_text(encoding="utf-8")
    new = replace_between(old, "figures", figures())
    if given.check:
        return int(old != new)
    page.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
