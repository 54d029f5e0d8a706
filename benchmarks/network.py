"""What docs/benchmarks.md says about networks, measured in labs on this machine. Needs root, iproute2 and PyTorch.

    python benchmarks/network.py                 # all of it: a quarter of an hour
    python benchmarks/network.py links           # how exactly a lab's links keep their rates: a minute
    python benchmarks/network.py all_reduce      # 4 hosts at 500 Mbit/s, gloo and Open MPI beside: six minutes
    python benchmarks/network.py collectives     # all ten collectives on those hosts, gloo beside: four minutes
    python benchmarks/network.py train           # training steps on those hosts: six minutes
    python benchmarks/network.py links --save    # keep the records and plots, and renew the page
    python benchmarks/network.py collectives --save --only gather,scatter    # put these into today's record

Every part is a `slipstream` command, which is printed. Ends with code 1 if a result was wrong or a command failed.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import collectives as tables

from slipstream.bench.collective.catalogue import COLLECTIVES
from slipstream.bench.judgements import judgement_table
from slipstream.bench.page import render, renew
from slipstream.bench.record import head, keep, origin, path_of
from slipstream.bench.shell import WrongResult, bench_record
from slipstream.bench.table import grid
from slipstream.lab import Lab
from slipstream.lab.measure import Flow, measure, neighbours

_HERE = Path(__file__).resolve().parent
_RESULTS = _HERE / "results"
_DOCUMENT = _HERE.parent / "docs" / "benchmarks.md"
_PLOTS = _HERE.parent / "docs" / "plots"

_PATHS = "100mbit,200mbit,400mbit,800mbit"
_LINKS: tuple[dict[str, Any], ...] = (
    {"hosts": 4, "rate": "500mbit"},
    {"hosts": 8, "rate": "500mbit"},
    {"hosts": 4, "rate": "1gbit"},
    {"hosts": 4, "rate": "100mbit"},
    {"hosts": 4, "rate": "500mbit", "mtu": 1500},
)
_REPEATS = 5
_SIZES = "4K,64K,1M,4M,16M,64M"
_ALL_SIZES = "4,4K,64K,1M,16M"
_LAB = ("--hosts", "4", "--rate", "500mbit")
_COLLECTIVES = "lab-collectives"
_MODELS = {"resnet50": "0.35s", "bert-base": "0.57s"}


def links(save: bool) -> None:
    """Every host sends to the next one over one connection, all at once; then 16 connections over unequal paths."""
    records = []
    for spec in _LINKS:
        with Lab(**spec) as lab:
            shares = []
            for _ in range(_REPEATS):
                flows = measure(lab, neighbours(lab.hosts))
                shares += [flow.rate / _line_rate(lab, flow) for flow in flows]
        mtu = spec.get("mtu", 9000)
        limit = (mtu - 52) / (mtu + 14)  # Ethernet, IP and TCP headers with timestamps
        records.append({**spec, "shares": shares, "limit": limit})
        print("  ".join(_link_row(records[-1])), flush=True)
    with Lab(2, paths=_PATHS) as lab:
        flows = measure(lab, [("h1", "h2")], flows=16, seconds=4.0)
    records.append({"paths": _PATHS, "flows": [[flow.path, flow.rate] for flow in flows]})
    record = head("links") | {"links": records}
    print(links_page(record))
    if save:
        keep(record, "links", _RESULTS)
        renew(_DOCUMENT, "links", links_page(record))


def links_page(record: dict[str, Any]) -> str:
    """What docs/benchmarks.md says of a record of links."""
    about = f"{origin(record)}; {_REPEATS} repeats of 2 s."
    *rates, unequal = record["links"]
    columns = ("hosts", "rate", "packets", "least", "median", "most", "headers leave")
    return f"{about}\n\n{grid(columns, [_link_row(one) for one in rates])}\n\n{_unequal(unequal)}"


def _link_row(found: dict[str, Any]) -> list[str]:
    shares = found["shares"]
    figures = [min(shares), statistics.median(shares), max(shares), found["limit"]]
    about = [str(found["hosts"]), found["rate"], str(found.get("mtu", 9000))]
    return about + [f"{100 * figure:.1f} %" for figure in figures]


def _line_rate(lab: Lab, flow: Flow) -> float:
    rate = lab.spec.host(flow.source).line_rate
    assert rate is not None
    return rate


def _unequal(found: dict[str, Any]) -> str:
    by_path = defaultdict(list)
    for path, rate in found["flows"]:
        by_path[path].append(rate)
    rows = []
    for path, limit in enumerate(found["paths"].split(","), 1):
        rates = by_path.get(path, [])
        each = ", ".join(f"{rate / 1e6:.0f}" for rate in sorted(rates))
        rows.append([str(path), limit, f"{sum(rates) / 1e6:.1f} Mbit/s", each or "no connection"])
    return grid(("path", "rate", "together", "connections, Mbit/s"), rows)


def all_reduce(save: bool) -> None:
    """All-reduce on 4 hosts at 500 Mbit/s, with gloo and Open MPI."""
    plot = _PLOTS / "all_reduce-4-hosts-500mbit.svg"
    bench = ["all_reduce", "-np", "4", "--sizes", _SIZES, "--against", "gloo,mpi", "--repeats", "9"]
    record = _bench(bench, plot if save else None)
    if save:
        keep(record, "all_reduce-lab", _RESULTS)
        renew(_DOCUMENT, "network", all_reduce_page(record))


def all_reduce_page(record: dict[str, Any]) -> str:
    """What docs/benchmarks.md says of a record of all-reduces."""
    return f"{render([record])}\n\n![bandwidth over size](plots/all_reduce-4-hosts-500mbit.svg)"


def collectives(save: bool, only: Sequence[str] = tuple(COLLECTIVES)) -> None:
    """Collectives on 4 hosts at 500 Mbit/s, with gloo; all of them, unless ``only`` some are to be measured."""
    record: dict[str, Any] | None = None
    for name in only:
        sizes = () if name == "barrier" else ("--sizes", _ALL_SIZES)
        measured = _bench([name, "-np", "4", "--against", "gloo", *sizes, "--repeats", "9"], None)
        found = tables.summary([measured]) | {"lab": list(_LAB)}
        found["runs"] = [{"collectives": [name], "load_1min": found["machine"]["load_1min"]}]
        path = path_of(found, _COLLECTIVES, _RESULTS)
        if record is None and path.exists() and set(only) != set(COLLECTIVES):
            record = json.loads(path.read_text(encoding="utf-8"))
        record = found if record is None else joined(record, found)
        if save:  # what has been measured stays if a later one fails
            keep(record, _COLLECTIVES, _RESULTS)
            renew(_DOCUMENT, "collectives-lab", collectives_page(record))
    assert record is not None
    print(collectives_page(record))


def joined(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`collectives.joined` for records of labs, with both runs named."""
    together = tables.joined(old, new, ("date", "versions", "repeats", "lab"))
    again = {row["collective"] for row in new["rows"]}
    runs = [
        {**run, "collectives": kept}
        for run in old["runs"]
        if (kept := [name for name in run["collectives"] if name not in again])
    ]
    return {**together, "runs": runs + new["runs"]}


def collectives_page(record: dict[str, Any]) -> str:
    """What docs/benchmarks.md says of a record of all collectives."""
    about = f"{origin(record)}; medians of {record['repeats']} batches."
    loads = ", ".join(f"{'/'.join(run['collectives'])} {run['load_1min']}" for run in record["runs"])
    about += f" One command for each collective, one after another; load before each: {loads}."
    judged = judgement_table(tables.slower_than_gloo(record))
    return f"{about}\n\n{tables.table(record['rows'])}\n\n{judged}"


def train(save: bool) -> None:
    """Training steps on 4 hosts at 500 Mbit/s, with gloo."""
    records = {}
    for model, seconds in _MODELS.items():
        plot = _PLOTS / f"train-{model}-4-hosts-500mbit.svg"
        bench = ["train", "-np", "4", "--model", model, "--compute-time", seconds, "--against", "gloo"]
        records[model] = _bench([*bench, "--repeats", "3", "--steps", "2"], plot if save else None)
        if save:
            keep(records[model], f"train-{model}-lab", _RESULTS)
    if save:
        renew(_DOCUMENT, "train", train_page(records))


def train_page(records: dict[str, dict[str, Any]]) -> str:
    """What docs/benchmarks.md says of the records of training steps, by model."""
    return "\n\n".join(
        f"{render([record])}\n\n![a step of {model}](plots/train-{model}-4-hosts-500mbit.svg)"
        for model, record in records.items()
    )


def _bench(arguments: Sequence[str], plot: Path | None) -> dict[str, Any]:
    """Runs `slipstream bench` in a lab and returns its record."""
    given = list(arguments)
    if plot is not None:
        plot.parent.mkdir(exist_ok=True)
        given += ["--plot", str(plot)]
    return bench_record(given, _LAB)


_PARTS = {"links": links, "all_reduce": all_reduce, "collectives": collectives, "train": train}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts that were asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(_PARTS)}; all by default")
    parser.add_argument(
        "--save", action="store_true", help="keep the records and plots, renew docs/benchmarks.md"
    )
    parser.add_argument(
        "--only", default="", help="the collectives of the part `collectives` to measure (all)"
    )
    given = parser.parse_args(arguments)
    only = [name for name in given.only.split(",") if name] or list(COLLECTIVES)
    if wrong := sorted(set(only) - set(COLLECTIVES)):
        parser.error(f"--only: there is no {', '.join(wrong)}")
    parts = {**_PARTS, "collectives": functools.partial(collectives, only=only)}
    unknown = sorted(set(given.parts) - set(_PARTS))
    if unknown:
        parser.error(f"no part {', '.join(unknown)}: expected some of {', '.join(_PARTS)}")
    for name in given.parts or _PARTS:
        try:
            parts[name](given.save)
        except (WrongResult, subprocess.CalledProcessError, ValueError) as error:
            print(f"network: {name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
