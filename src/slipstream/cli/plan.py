"""``slipstream plan``: what a cluster would do, computed, not measured."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

import click

from slipstream.base.units import format_rate, parse_duration, parse_rate, parse_size
from slipstream.bench.table import grid, time_text
from slipstream.cli.options import Number, Whole, parsed
from slipstream.plan.sizing import MOST_REDUCERS, Cluster, Outcome, Sizing, Training, outcome, size

__all__ = ["plan"]

_EPILOG = """\b
Examples:
  slipstream plan reducers --workers 8 --worker-rate 100gbit --reducer-rate 32gbit \\
      --model-bytes 1.3GB --compute-time 0.3s --worker-price 30 --reducer-price 0.7
  slipstream plan reducers --workers 4 --worker-rate 10gbit --reducer-rate 10gbit \\
      --model-bytes 440M --compute-time 180ms --overlap 0.7 --reducers 2 --json
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def plan() -> None:
    """Computes what a cluster would do, before it is rented."""


@plan.command(epilog=_EPILOG)
@click.option(
    "--workers",
    type=Whole(2, 1 << 16),
    required=True,
    help="Number of hosts that train; each has one link.",
)
@click.option(
    "--ranks-per-host",
    type=Whole(min=1),
    default=1,
    show_default=True,
    help="Number of ranks on each worker. They share its link, and sum within the worker first, so times are those of "
    "the workers.",
)
@click.option(
    "--worker-rate",
    metavar="RATE",
    callback=parsed(parse_rate),
    required=True,
    help="Rate of a worker's link, such as 10gbit.",
)
@click.option(
    "--reducer-rate",
    metavar="RATE",
    callback=parsed(parse_rate),
    required=True,
    help="Rate of a reducer's link, or the rate at which its processor can sum if that is lower.",
)
@click.option(
    "--model-bytes",
    metavar="SIZE",
    callback=parsed(functools.partial(parse_size, rounded=True)),
    required=True,
    help="Size of the gradients that a step exchanges, in their wire type (1.3GB is 1.3e9 bytes; 1.3GiB counts in "
    "units of 1024).",
)
@click.option(
    "--compute-time",
    metavar="TIME",
    callback=parsed(parse_duration),
    required=True,
    help="Compute time of a step, without communication.",
)
@click.option(
    "--overlap",
    type=Number(0, 1),
    default=0.0,
    show_default=True,
    help="Share of the communication that can run during the computation.",
)
@click.option(
    "--worker-price", type=float, default=0.0, help="Price of a worker per hour. [default: no costs]"
)
@click.option("--reducer-price", type=float, default=0.0, help="Price of a reducer per hour.")
@click.option("--reducers", "asked", type=Whole(0, MOST_REDUCERS), help="Also show this number of reducers.")
@click.option(
    "--steps",
    type=Whole(min=1),
    help="Number of steps of the training; adds its total time and cost.",
)
@click.option(
    "--hours",
    type=Number(min=0, min_open=True),
    help="Time that the training takes without reducers; adds its total time and cost.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reducers(
    workers: int,
    ranks_per_host: int,
    worker_rate: int,
    reducer_rate: int,
    model_bytes: int,
    compute_time: float,
    overlap: float,
    worker_price: float,
    reducer_price: float,
    asked: int | None,
    steps: int | None,
    hours: float | None,
    as_json: bool,
) -> None:
    """Prints how fast a training step is, and what it costs, with any number of reducers.

    \b
    n workers with links of B exchange M bytes beside reducers with links of S * B together:
      communication T = 2n(n-1) / (n^2 + nS - 2S) * M/B   for S < n, else M/B
      step            = max(compute, overlap * T) + (1 - overlap) * T
      cost of a step  = step * (workers * worker price + reducers * reducer price)

    S = 0 is the ring among the workers. No more than ceil(n * worker rate / reducer rate) reducers are of use. Latency,
    and what else shares the links, is not in it: measure with `slipstream bench`.
    """
    if steps is not None and hours is not None:
        raise click.UsageError("give --steps or --hours, not both")
    try:
        cluster = Cluster(workers, worker_rate, reducer_rate, worker_price, reducer_price, ranks_per_host)
        training = Training(model_bytes, compute_time, overlap, steps)
        if hours is not None:
            alone = outcome(cluster, training, 0)
            training = dataclasses.replace(training, steps=hours * 3600 * alone.steps_per_second)
        found = size(cluster, training, asked)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    click.echo(json.dumps(dataclasses.asdict(found), indent=2) if as_json else _text(found))


def _text(sizing: Sizing) -> str:
    cluster, training = sizing.cluster, sizing.training
    ranks = f", each with {cluster.ranks_per_host} ranks," if cluster.ranks_per_host > 1 else ""
    what = (
        f"{cluster.workers} workers{ranks} of {format_rate(cluster.worker_rate)}, "
        f"reducers of {format_rate(cluster.reducer_rate)}; a step computes {time_text(training.compute)} and "
        f"exchanges {training.nbytes} bytes, {100 * training.overlap:g} % of that while it computes"
    )
    lines = [_cells(sizing, one) for one in sizing.outcomes]
    table = grid(list(lines[0]), [list(line.values()) for line in lines])
    return "\n".join([what, "", table, *_remarks(sizing)])


def _cells(sizing: Sizing, one: Outcome) -> dict[str, str]:
    """A row, by the heads of its columns."""
    cells = {
        "reducers": str(one.reducers),
        "communication": time_text(one.communication_seconds),
        "step": time_text(one.step_seconds),
        "steps/s": _number(one.steps_per_second),
        "speed": f"{one.speedup:.2f}x",
    }
    if sizing.cluster.priced:
        cells |= {
            "cost/hour": _number(one.cost_per_hour),
            "cost/1000 steps": _number(one.cost_per_1000_steps),
        }
        cells["relative cost"] = "" if one.relative_cost is None else f"{100 * one.relative_cost:.1f} %"
    if sizing.training.steps is not None:
        cells["hours"] = _number(one.hours)
        if sizing.cluster.priced:
            cells["total cost"] = _number(one.total_cost)
    remarks = {
        "fastest": one.reducers == sizing.recommended and one.reducers > 0,
        "cheapest": one.reducers == sizing.cheapest,
    }
    return cells | {"": ", ".join(remark for remark, holds in remarks.items() if holds)}


def _number(value: float | None) -> str:
    """``33.02``, ``1,234.50``, ``0.00123``."""
    if value is None:
        return ""
    return f"{value:,.2f}" if value >= 1 or value == 0 else f"{value:.3g}"


def _remarks(sizing: Sizing) -> list[str]:
    found: list[Any] = []
    if sizing.cluster.workers == 2:
        found.append("The ring of two workers moves each byte once already: reducers make it no faster.")
    elif sizing.rule > sizing.recommended:
        found.append(
            f"All workers' bandwidth takes {sizing.rule} reducers of this rate; a job has at most {MOST_REDUCERS}."
        )
    return ["", *found] if found else []
