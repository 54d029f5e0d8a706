"""``slipstream bench train``: a training step end to end, beside its peers."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import click

from slipstream.base.dtypes import WIRE_NAMES
from slipstream.base.settings import Settings
from slipstream.base.units import parse_duration
from slipstream.cli.bench_options import (
    Option,
    decorated,
    given_placement,
    link_options,
    measuring,
    output_options,
    placement_options,
    shown_on,
    write_outputs,
)
from slipstream.cli.options import Name, Number, Whole, parsed

if TYPE_CHECKING:
    from slipstream.bench.train.options import Options

__all__ = ["CONTENDERS", "train"]

# Beside slipstream, which is always there.
CONTENDERS = ("slipstream-ring", "slipstream-horovod", "gloo", "mpi", "horovod", "nccl")
_MISSING = "PyTorch is missing, which bench train needs: pip install torch"

_EPILOG = """\b
Examples:
  slipstream bench train --model resnet50 -np 2
  slipstream bench train --model vgg16 -np 4 -H node1:1,node2:1,node3:1,node4:1 --link-rate 1gbit
  slipstream bench train --model vgg16 -np 4 --hostfile hosts --reducers cpu1,cpu2 --against slipstream-ring,gloo \\
      --worker-price 30 --reducer-price 0.7
  slipstream bench train --model gpt-small -np 2 --compute-time 0.3s --json result.json --plot step.svg
  slipstream bench train --model mine.models:make -np 2 --compute real --batch 8

\b
A model of your own: MODULE:FUNCTION returns a torch module and a function from the batch size
to the tuple of the module's inputs; the loss is the mean of what the module returns.
"""


def _contenders(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - set(CONTENDERS))
    if unknown:
        raise ValueError(f"no contender {', '.join(unknown)}: expected some of {', '.join(CONTENDERS)}")
    return list(dict.fromkeys(names))


_WHAT: list[Option] = [
    click.option("--model", required=True, help="resnet50, vgg16, bert-base, gpt-small, or MODULE:FUNCTION."),
    click.option(
        "--against",
        metavar="NAME,...",
        callback=parsed(_contenders),
        default="gloo",
        show_default=True,
        help=f"Peers, of: {', '.join(CONTENDERS)}.",
    ),
    click.option(
        "--compute",
        type=click.Choice(["delay", "real"]),
        default="delay",
        show_default=True,
        help="Wait without using the CPU for as long as compute takes, or compute on the CPU.",
    ),
    click.option(
        "--compute-time",
        metavar="TIME",
        callback=parsed(parse_duration),
        help="Compute time of a step with --compute delay, such as 0.3s. [default: a published figure of a GPU]",
    ),
    click.option(
        "--batch",
        type=Whole(min=1),
        help="Number of samples per rank and step. [default: that of the published figure, or 1]",
    ),
    click.option(
        "--bucket-mb",
        type=Number(min=0, min_open=True),
        default=25.0,
        show_default=True,
        help="Size of DDP's buckets in MiB.",
    ),
    click.option(
        "--wire",
        type=Name(WIRE_NAMES),
        help="What slipstream's gradients travel as between hosts. [default: SLIPSTREAM_WIRE, else exact]",
    ),
    click.option(
        "--optimizer",
        type=click.Choice(["none", "sgd"]),
        default="none",
        show_default=True,
        help="Optimizer that updates the parameters after the exchange of gradients.",
    ),
]
_MEASUREMENT: list[Option] = [
    click.option(
        "--repeats",
        type=Whole(min=1),
        default=10,
        show_default=True,
        help="Number of turns of each contender.",
    ),
    click.option(
        "--steps",
        type=Whole(min=1),
        default=3,
        show_default=True,
        help="Number of steps in a turn.",
    ),
    click.option(
        "--warmup",
        type=Whole(min=3),
        default=3,
        show_default=True,
        help="Number of steps before the measurement.",
    ),
]
_REDUCERS: list[Option] = [
    click.option(
        "--reducers",
        metavar="HOST[:PORT],...|auto",
        help="Reducers that slipstream uses, as for slipstream run; slipstream-ring uses none. [default: "
        "SLIPSTREAM_REDUCERS]",
    ),
    click.option(
        "--worker-price",
        type=Number(min=0),
        default=0.0,
        help="Price of a host per hour. [default: no costs]",
    ),
    click.option("--reducer-price", type=Number(min=0), default=0.0, help="Price of a reducer per hour."),
]
_OUTPUT: list[Option] = [
    *output_options("Draw where the time of a step goes: FILE.svg or FILE.png."),
    click.option("--inject-error", metavar="CONTENDER", default="", hidden=True),
]


def _train(**given: Any) -> None:
    """Measures a training step: forward, backward, and the exchange of gradients.

    Slipstream and its peers train the same model in the same processes and take turns. Shown are the time of a
    step, how much of the communication was hidden behind compute, the speed against each peer, the limit of the
    network, and with prices what steps cost. Gradients are compared with what they must be: exits with 1 if any
    is wrong, 2 if the ranks failed.
    """
    if importlib.util.find_spec("torch") is None:
        raise click.ClickException(_MISSING)
    from slipstream.bench.measurement import link_environment
    from slipstream.bench.train.command import measure, wrong_gradients
    from slipstream.bench.train.report import report
    from slipstream.bench.view import showing

    with measuring(given):
        settings = Settings.from_environment()
        try:
            record = measure(
                _options(given),
                given_placement(given, settings),
                limit=given["limit"],
                link_rate=given["link_rate"] or settings.lab_rate,
                environment=link_environment(
                    lanes=given["lanes"], encrypt=given["encrypt"], wire=given["wire"]
                ),
                progress=_progress,
            )
        finally:
            _progress("")
    with showing(shown_on(given)) as show:
        show(report(record))
    write_outputs(record, given)
    wrong = wrong_gradients(record)
    if wrong:
        click.echo(f"WRONG GRADIENTS: {', '.join(wrong)}", err=True)
        sys.exit(1)


def _options(given: dict[str, Any]) -> Options:
    from slipstream.bench.train.catalogue import FIGURES
    from slipstream.bench.train.options import Options

    model, compute = given["model"], given["compute"]
    figure = FIGURES.get(model) if compute == "delay" else None
    seconds = given["compute_time"] or (figure.seconds if figure else None)
    if model not in FIGURES and ":" not in model:
        raise click.BadParameter(f"{', '.join(FIGURES)} or MODULE:FUNCTION", param_hint="--model")
    if compute == "delay" and seconds is None:
        raise click.UsageError("the compute time of this model is unknown: give --compute-time")
    batch = given["batch"] or (figure.batch if figure and given["compute_time"] is None else None)
    return Options(
        model=model,
        contenders=["slipstream", *given["against"]],
        compute=compute,
        seconds=seconds or 0.0,
        batch=batch or (1 if compute == "real" else None),
        bucket_mb=given["bucket_mb"],
        optimizer=given["optimizer"],
        repeats=given["repeats"],
        steps=given["steps"],
        warmup=given["warmup"],
        inject_error=given["inject_error"],
        worker_price=given["worker_price"],
        reducer_price=given["reducer_price"],
    )


def _progress(text: str) -> None:
    """Shows ``text`` in place of what was shown before, on a terminal."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


train = click.command("train", epilog=_EPILOG)(
    decorated(_train, [*_WHAT, *placement_options(), *_MEASUREMENT, *link_options(), *_REDUCERS, *_OUTPUT])
)
