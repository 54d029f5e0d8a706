"""A record of training steps as people read it: a line for each contender."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.base.units import format_rate
from slipstream.bench.record import origin
from slipstream.bench.report import Report, encryption, ratio_text
from slipstream.bench.train.catalogue import FIGURES
from slipstream.bench.train.options import PLAIN, REDUCING

__all__ = ["report"]

_DISPENSABLE = ("min", "p90", "hidden", "efficiency", "samples/s", "overlap", "communication")


def report(record: Mapping[str, Any]) -> Report:
    """What was measured, a line for each contender, and what to know of the numbers."""
    head, lines = _table(record)
    return Report([_headline(record), origin(record)], head, lines, _notes(record), _DISPENSABLE)


def _headline(record: Mapping[str, Any]) -> str:
    options = record["options"]
    batch = f", {options['batch']} samples a rank" if options["batch"] else ""
    figure = FIGURES.get(options["model"])
    known = f", as on a {figure.gpu}" if figure and figure.seconds == options["seconds"] else ""
    compute = "real" if options["compute"] == "real" else f"a delay of {_ms(options['seconds'])}{known}"
    return (
        f"{options['model']}: {record['parameters']:,} parameters in {record['tensors']} tensors, "
        f"{record['bytes'] / 1e6:.1f} MB of gradients; {record['ranks']} ranks on {_hosts(record)}; "
        + "; ".join([f"compute: {compute}{batch}", *encryption(record), *_wire(record)])
    )


def _wire(record: Mapping[str, Any]) -> list[str]:
    wire = record.get("wire", "exact")
    return [] if wire == "exact" else [f"slipstream's gradients travel as {wire} between hosts"]


def _table(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The heads of the columns, and a row a contender."""
    contenders = record["contenders"]
    peers = [name for name in contenders if name not in (PLAIN, "slipstream")]
    sampled = contenders[PLAIN]["samples_per_second"] is not None
    columns = [
        "contender",
        "step",
        "min",
        "p90",
        "communication",
        "exposed",
        "hidden",
        "overlap",
        "efficiency",
    ]
    priced = "cost_per_1000_steps" in contenders[PLAIN]
    columns += [*(["samples/s"] if sampled else []), *(["cost/1000 steps"] if priced else [])]
    columns += ["#wrong", *(f"vs {peer}" for peer in peers)]
    rows = []
    for name, row in contenders.items():
        cells = [name, *(_ms(row["step"][key]) for key in ("median", "min", "p90"))]
        if name == PLAIN:
            cells += [""] * 5
        else:
            cells += [_ms(row["communication"]["median"]), _ms(row["exposed"]), _ms(row["hidden"])]
            cells += [_percent(row["overlap"]), _percent(row["efficiency"])]
        cells += [f"{row['samples_per_second']:.1f}"] if sampled else []
        cells += [f"{row['cost_per_1000_steps']:.4g}"] if priced else []
        cells.append(str(row["wrong"]))
        rows.append(cells + [ratio_text(row["ratio"].get(peer)) for peer in peers])
    return columns, rows


def _notes(record: Mapping[str, Any]) -> list[str]:
    options, limit = record["options"], record["limit"]
    notes = [
        f"Steps: {options['repeats']} turns of {options['steps']}, the slowest rank of each. "
        f"Communication: the same buckets, all-reduced back to back. vs: its time to this row's [quartiles]."
    ]
    if options["compute"] == "delay":
        off = record["plain"] / options["seconds"] - 1 if options["seconds"] else 0.0
        notes.append(f"The plain step is {100 * off:+.1f} % of the time asked for.")
    if limit:
        notes.append(
            f"Limit at {format_rate(limit['link_rate'])}/s a host: communication {_ms(limit['communication'])}, "
            f"step {_ms(limit['step'])}."
        )
    notes += _of_reducers(record)
    notes.append(f"Memory of the largest rank: {record['peak_memory'] / 2**30:.2f} GiB.")
    notes += ["nccl: its gradients are in GPU memory."] if "nccl" in record["contenders"] else []
    notes += [f"Missing: {name}: {reason}." for name, reason in record["missing"].items()]
    wrong = [name for name, row in record["contenders"].items() if row["wrong"]]
    notes += [f"WRONG GRADIENTS: {', '.join(wrong)}. These times mean nothing."] if wrong else []
    return notes


def _of_reducers(record: Mapping[str, Any]) -> list[str]:
    reducers, limit, options = record.get("reducers") or {}, record["limit"], record["options"]
    notes = []
    if reducers:
        text = f"{len(reducers)} reducers, used by {' and '.join(n for n in REDUCING if n in record['contenders'])}"
        if limit:
            text += (
                f"; limit beside as many of a host's rate: communication "
                f"{_ms(limit['communication_beside_reducers'])}, step {_ms(limit['step_beside_reducers'])}"
            )
        notes.append(text + ".")
    lost = [name for name, used in reducers.items() if not used]
    notes += [f"NOT USED AT THE END: {', '.join(lost)}. These times are not of all reducers."] if lost else []
    relative = record["contenders"].get("slipstream", {}).get("relative_cost")
    if relative:
        shares = ", ".join(f"{100 * share:.1f} % of {peer}'s" for peer, share in relative.items())
        prices = f"a host {options['worker_price']:g} an hour, a reducer {options['reducer_price']:g}"
        notes.append(f"Cost of slipstream's step: {shares} ({prices}).")
    return notes


def _hosts(record: Mapping[str, Any]) -> str:
    count = len(set(record["hosts"]))
    return "1 host" if count == 1 else f"{count} hosts"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"
