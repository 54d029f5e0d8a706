"""What the records of `reducers.py` say: tables, the formula beside what was measured, and targets. Pure functions.

A record of a lab has ``workers``, ``rate`` (bit/s of a worker's link), ``reducer_rates`` (of each reducer's) and
``sizes``: of each its ``bytes`` and for each contender the ``samples`` (seconds a call). ``idle`` is the share of the
machine's processor time that nobody used meanwhile: near 0 it was the processors that were measured, not the links.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from slipstream.bench.judgements import Judgement, at_least, judgement_table
from slipstream.bench.samples import spread_cells
from slipstream.bench.table import grid, size_text, time_text
from slipstream.plan.sizing import relative_time

__all__ = [
    "LABS",
    "formula_seconds",
    "judge",
    "measured_rows",
    "model_rows",
    "page",
    "sums_rows",
    "train_rows",
]

LABS = {
    "four": "4 workers and 4 reducers",
    "eight": "8 workers and 8 reducers",
    "eight_slower": "8 workers and 8 reducers at 250 Mbit/s",
    "two_hosts": "2 workers of 2 ranks and 2 reducers",
    "four_hosts": "4 workers of 2 ranks and 4 reducers",
    "slow": "4 workers and 4 reducers, one of 100 Mbit/s",
    "small": "8 workers and 8 reducers",
}
MODEL_TOLERANCE = 0.08
LINK_SHARE = 0.93
SPEEDS = {
    ("four", "ring"): 1.38,
    ("four", "gloo"): 1.4,
    ("eight", "ring"): 1.6,
    ("eight_slower", "ring"): 1.6,
    ("four_hosts", "choice"): 1.3,
}
HIERARCHY = 1.4  # times as fast as the flat ring, on 2 workers of 2 ranks; the formula says 1.5
ONE_REDUCER = 1.02  # faster than none, and not by chance; the formula says 1.09 beside 8 workers
SMALL_LATENCY = 0.6  # of the ring's
SUM_RATE = 1.5e9  # bytes of input a second and core
_GB = 1e9

Row = tuple[str, ...]


def formula_seconds(lab: Mapping[str, Any], nbytes: int, reducers: int) -> float:
    """Seconds of an all-reduce beside the first ``reducers``: `relative_time` times M/B, nothing fitted.

    M: the payload of one rank, ``nbytes``. B: a worker's link as it is set, headers included.
    """
    rate = sum(lab["reducer_rates"][:reducers]) / lab["rate"]
    return relative_time(lab["workers"], rate) * 8 * nbytes / lab["rate"]


def _median(size: Mapping[str, Any], name: str) -> float:
    return statistics.median(size["contenders"][name]["samples"])


def _beside(size: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The contenders of a size that use reducers, and how many."""
    for name in size["contenders"]:
        kind, _, number = name.partition("-")
        if kind in {"reducers", "through"}:
            yield name, int(number)


def _labs(records: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    for part in LABS:
        for size in records.get(part, {}).get("sizes", ()):
            yield part, records[part], size


def measured_rows(records: Mapping[str, Any]) -> list[Row]:
    """Lab, size, contender, algorithm, median, least and most, runs, share of the link, speed by ring's and gloo's."""
    rows = []
    for part, lab, size in _labs(records):
        for name, row in size["contenders"].items():
            median, samples = _median(size, name), row["samples"]
            spread = f"{time_text(min(samples))} to {time_text(max(samples))}"
            share = 8 * size["bytes"] / median / lab["rate"]
            ratios = [
                f"{_median(size, peer) / median:.2f}x" if peer in size["contenders"] and peer != name else ""
                for peer in ("ring", "gloo")
            ]
            cells = [
                LABS[part],
                size_text(size["bytes"]),
                name,
                row.get("way", ""),
                time_text(median),
                spread,
            ]
            rows.append((*cells, str(len(samples)), f"{share:.3f}" if part != "small" else "", *ratios))
    return rows


def model_rows(records: Mapping[str, Any]) -> list[Row]:
    """Lab, reducers, size, what the formula says, what was measured, and by how much that is more."""
    rows = []
    for part, lab, size in _labs(records):
        if part == "small":  # the formula knows no latency
            continue
        found = sorted([(number, name) for name, number in _beside(size)])
        alone = (
            "ring" if lab.get("local", 1) == 1 else "choice"
        )  # a flat ring sends more where ranks share links
        if alone in size["contenders"]:
            found.insert(0, (0, alone))
        for number, name in found:
            formula, median = formula_seconds(lab, size["bytes"], number), _median(size, name)
            off = f"{100 * (median / formula - 1):+.1f} %"
            cells = (LABS[part], str(number), size_text(size["bytes"]))
            rows.append((*cells, time_text(formula), time_text(median), off))
    return rows


def judge(records: Mapping[str, Any]) -> list[Judgement]:
    """The targets that these records allow to be judged."""
    judgements = []
    for part, lab, size in _labs(records):
        where = f"{LABS[part]}, {size_text(size['bytes'])}"
        most = f"reducers-{len(lab['reducer_rates'])}"
        if part == "small":
            judgements += _small(where, size)
            continue
        if part == "slow" or most not in size["contenders"]:
            continue
        ours = _median(size, most)
        if part == "four":
            share = 8 * size["bytes"] / ours / lab["rate"]
            judgements.append(
                at_least(f"{where}: algorithm bandwidth, part of the link", share, LINK_SHARE, "")
            )
            judgements += _model(where, lab, size)
        if part == "eight" and "reducers-1" in size["contenders"]:
            speed = _median(size, "ring") / _median(size, "reducers-1")
            judgements.append(
                at_least(f"{where}: speed with one reducer relative to ring", speed, ONE_REDUCER)
            )
        if part == "two_hosts":
            judgements += _model(where, lab, size, of_all=True)
            speed = _median(size, "ring") / _median(size, "choice")
            judgements.append(at_least(f"{where}: speed of the hierarchy relative to ring", speed, HIERARCHY))
        for (of, peer), factor in SPEEDS.items():
            if of == part and peer in size["contenders"]:
                speed = _median(size, peer) / ours
                judgements.append(at_least(f"{where}: speed relative to {peer}", speed, factor))
    return judgements + _sums(records.get("sums", {}))


def _model(
    where: str, lab: Mapping[str, Any], size: Mapping[str, Any], *, of_all: bool = False
) -> list[Judgement]:
    """Whether fewer reducers than workers take what the formula says, or as many if ``of_all``."""
    found = []
    for name, number in sorted(_beside(size), key=lambda one: one[1]):
        if number == lab["workers"] and not of_all:
            continue
        off = _median(size, name) / formula_seconds(lab, size["bytes"], number) - 1
        text = f"{where}: {number} of the reducers, time beyond the formula's"
        wanted = f"within {100 * MODEL_TOLERANCE:g} %"
        found.append(Judgement(text, wanted, f"{100 * off:+.1f} %", abs(off) <= MODEL_TOLERANCE))
    return found


def _small(where: str, size: Mapping[str, Any]) -> list[Judgement]:
    if "ring" not in size["contenders"]:
        return []
    found = []
    for name, number in _beside(size):
        share = _median(size, name) / _median(size, "ring")
        way = size["contenders"][name].get("way", "")
        text = f"{where}: latency beside {number} ({way}), relative to the ring's"
        found.append(Judgement(text, f"<= {SMALL_LATENCY:g}x", f"{share:.3g}x", share <= SMALL_LATENCY))
    return found


def _sums(sums: Mapping[str, Any]) -> list[Judgement]:
    found = []
    for kernel in sums.get("kernels", ()):
        rate = statistics.median(kernel["sum"])
        text = (
            f"sum of {kernel['inputs']} f32 inputs of {size_text(kernel['bytes'])}: input a second and core"
        )
        measured = f"{rate / _GB:.2f} GB/s"
        found.append(Judgement(text, f">= {SUM_RATE / _GB:g} GB/s", measured, rate >= SUM_RATE))
    return found


def sums_rows(records: Mapping[str, Any]) -> list[Row]:
    """What summing costs: kernels and memcpy, and the CPU time of whole reducers for each GB that they got."""
    rows = []
    sums = records.get("sums", {})
    for kernel in sums.get("kernels", ()):
        size = size_text(kernel["bytes"])
        for key, what in (("sum", f"sum of {kernel['inputs']} inputs, input a second"), ("copy", "memcpy")):
            rows.append(
                (
                    f"one core, {size}: {what}",
                    *spread_cells([rate / _GB for rate in kernel[key]], "GB/s", ".3g"),
                )
            )
    for process in sums.get("processes", ()):
        what = f"whole reducers, {process['what']}: CPU seconds for a GB in and a GB out"
        rows.append((what, *spread_cells(process["cpu_per_gb"], "s", ".3g")))
        rates = [1 / one for one in process["cpu_per_gb"]]
        rows.append(
            (f"whole reducers, {process['what']}: input a CPU second", *spread_cells(rates, "GB", ".3g"))
        )
    if sums:
        copies = [_GB / rate for rate in sums["kernels"][-1]["copy"]]
        rows.append(("memcpy out of cache: CPU seconds for a GB", *spread_cells(copies, "s", ".3g")))
    return rows


def train_rows(records: Mapping[str, Any]) -> list[Row]:
    """Model, contender, step, how often its speed ours is, cost of 1000 steps, and ours of that."""
    rows = []
    for model, record in records.get("train", {}).items():
        ours = record["contenders"]["slipstream"]
        for name, row in record["contenders"].items():
            ratio, relative = ours["ratio"].get(name), ours["relative_cost"].get(name)
            label = f"slipstream, {len(record['reducers'])} reducers" if name == "slipstream" else name
            cells = [model, label, time_text(row["step"]["median"]), str(len(row["step"]["samples"]))]
            cells += [f"{ratio['value']:.2f}x" if ratio else "", f"{row['cost_per_1000_steps']:.4g}"]
            rows.append((*cells, f"{100 * relative:.1f} %" if relative else ""))
    return rows


def _train_about(records: Mapping[str, Any]) -> str:
    """How the steps were made, in a sentence."""
    found = []
    for model, record in records.get("train", {}).items():
        options = record["options"]
        found.append(
            f"{model}: {record['bytes'] / 1e6:.0f} MB of gradients, compute is a delay of "
            f"{time_text(options['seconds'])}, {options['repeats']} turns of {options['steps']} steps; a worker "
            f"{options['worker_price']:g} an hour, a reducer {options['reducer_price']:g}."
        )
    return " ".join(found)


def _idle(records: Mapping[str, Any]) -> list[str]:
    shares = [f"{part} {100 * records[part]['idle']:.0f} %" for part in LABS if part in records]
    text = "Of the processors' time nobody used (near 0 they are the limit, not the links): "
    return [f"{text}{', '.join(shares)}."] if shares else []


def page(records: Mapping[str, Any]) -> str:
    """All that the records say, in Markdown."""
    tables = (
        (
            "Against the targets.",
            (),
            [judgement_table(judgements)] if (judgements := judge(records)) else [],
        ),
        (
            "The formula beside what was measured; 0 reducers: the ring. M is the payload of one rank, B a worker's "
            "link as it is set, 500 Mbit/s with headers (TCP can get 99.3 % of it); nothing is fitted.",
            ("lab", "reducers", "size", "formula", "measured", "more by"),
            model_rows(records),
        ),
        (
            "All-reduce, f32, each after one that does not count. link: payload as a part of the link's rate; choice: "
            "what slipstream takes without reducers; through: small messages go through the reducers, measured to be "
            "quicker or not.",
            (
                "lab",
                "size",
                "contender",
                "algorithm",
                "median",
                "spread",
                "runs",
                "link",
                "vs ring",
                "vs gloo",
            ),
            measured_rows(records),
        ),
        (
            "Cost of sums.",
            ("what", "median", "spread", "runs"),
            sums_rows(records),
        ),
        (
            f"Training steps, 4 workers and 4 reducers. {_train_about(records)}",
            ("model", "contender", "step", "steps", "ours is", "cost/1000 steps", "ours of that"),
            train_rows(records),
        ),
    )
    texts = _idle(records)
    for text, head, rows in tables:
        if rows:
            texts += [text, grid(head, rows) if head else str(rows[0])]
    return "\n\n".join(texts)
