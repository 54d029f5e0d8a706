"""``slipstream bench train``: a training step end to end, beside its peers."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import click

from slipstream.base.settings import Settings
from slipstream.base.units import parse_duration, parse_rate
from slipstream.cli.bench import given_hosts
from slipstream.cli.options import encrypt_option, parsed, time_option
from slipstream.launch.hosts import Host

__all__ = ["CONTENDERS", "train"]

# Beside slipstream, which is always there.
CONTENDERS = ("slipstream-ring", "slipstream-horovod", "gloo", "mpi", "horovod", "nccl")
_MISSING = "{name} is missing, which bench train needs: pip install torch rich matplotlib"

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


@click.command(epilog=_EPILOG)
@click.option("--model", required=True, help="resnet50, vgg16, bert-base, gpt-small, or MODULE:FUNCTION.")
@click.option(
    "-np", "--num-proc", "count", type=click.IntRange(min=2), required=True, help="Number of ranks."
)
@click.option(
    "--against",
    metavar="NAME,...",
    callback=parsed(_contenders),
    default="gloo",
    show_default=True,
    help=f"Peers, of: {', '.join(CONTENDERS)}.",
)
@click.option(
    "--compute",
    type=click.Choice(["delay", "real"]),
    default="delay",
    show_default=True,
    help="Wait without using the CPU for as long as compute takes, or compute on the CPU.",
)
@click.option(
    "--compute-time",
    metavar="TIME",
    callback=parsed(parse_duration),
    help="Compute time of a step with --compute delay, such as 0.3s. [default: a published figure of a GPU]",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    help="Number of samples per rank and step. [default: that of the published figure, or 1]",
)
@click.option(
    "--bucket-mb",
    type=click.FloatRange(min=0, min_open=True),
    default=25.0,
    show_default=True,
    help="Size of DDP's buckets in MiB.",
)
@click.option(
    "--optimizer",
    type=click.Choice(["none", "sgd"]),
    default="none",
    show_default=True,
    help="Optimizer that updates the parameters after the exchange of gradients.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Number of turns of each contender.",
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=3, show_default=True, help="Number of steps in a turn."
)
@click.option(
    "--warmup",
    type=click.IntRange(min=3),
    default=3,
    show_default=True,
    help="Number of steps before the measurement.",
)
@click.option(
    "-H", "--hosts", metavar="HOST:SLOTS,...", help="Hosts, and the number of ranks on each of them."
)
@click.option(
    "--hostfile",
    type=click.Path(path_type=Path),
    help="File of lines 'host slots=N' or 'host:N'. [default: SLIPSTREAM_HOSTFILE]",
)
@click.option("--ssh-command", help="Command that starts a shell on another host. [default: ssh]")
@click.option("--interface", help="Interface name or address to bind and advertise, for all contenders.")
@click.option(
    "--lanes", type=click.IntRange(1, 64), help="Number of slipstream's TCP connections between two ranks."
)
@encrypt_option()
@click.option(
    "--reducers",
    metavar="HOST[:PORT],...|auto",
    help="Reducers that slipstream uses, as for slipstream run; slipstream-ring uses none. [default: "
    "SLIPSTREAM_REDUCERS]",
)
@click.option(
    "--worker-price",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Price of a host per hour. [default: no costs]",
)
@click.option(
    "--reducer-price", type=click.FloatRange(min=0), default=0.0, help="Price of a reducer per hour."
)
@click.option(
    "--link-rate",
    metavar="RATE",
    callback=parsed(parse_rate),
    help="Rate of each host's link, such as 500mbit; adds the time that it allows. [default: SLIPSTREAM_LAB_RATE]",
)
@time_option("--limit", 1800, "In all", least=1, most=1e9)
@click.option(
    "--json", "json_file", is_flag=False, flag_value="-", metavar="[FILE]", help="Write all samples as JSON."
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw where the time of a step goes: FILE.svg or FILE.png.",
)
@click.option("--inject-error", metavar="CONTENDER", default="", hidden=True)
def train(
    hosts: str | None, hostfile: Path | None, json_file: str | None, plot: Path | None, **given: Any
) -> None:
    """Measures a training step: forward, backward, and the exchange of gradients.

    Slipstream and its peers train the same model in the same processes and take turns. Shown are the time of a
    step, how much of the communication was hidden behind compute, the speed against each peer, the limit of the
    network, and with prices what steps cost. Gradients are compared with what they must be: exits with 1 if any
    is wrong, 2 if the ranks failed.
    """
    if plot is not None and plot.suffix.lower() not in (".svg", ".png"):
        raise click.BadParameter("expected a name that ends in .svg or .png", param_hint="--plot")
    if importlib.util.find_spec("torch") is None:
        raise click.ClickException(_MISSING.format(name="PyTorch"))
    show = (
        None if json_file == "-" else _module("table").show
    )  # what is missing is missed before all the work
    draw = None if plot is None else _module("plot").draw
    try:
        settings = Settings.from_environment()
        record = _measure(given_hosts(hosts, hostfile, settings), settings, given)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    text = json.dumps(record, indent=1)
    if show is None:
        click.echo(text)
    else:
        show(record)
        if json_file is not None:
            Path(json_file).write_text(text + "\n")
    if draw is not None:
        draw(record, plot)
    wrong = [f"{name}: {row['wrong']}" for name, row in record["contenders"].items() if row["wrong"]]
    if wrong:
        click.echo(f"WRONG GRADIENTS: {', '.join(wrong)}", err=True)
        sys.exit(1)


def _module(name: str) -> Any:
    """A part of the benchmark, which needs more than the command line does."""
    try:
        return importlib.import_module(f"slipstream.bench.train.{name}")
    except ModuleNotFoundError as error:
        if error.name in ("rich", "matplotlib"):
            raise click.ClickException(_MISSING.format(name=error.name)) from None
        raise


def _measure(placed: tuple[Host, ...], settings: Settings, given: dict[str, Any]) -> dict[str, Any]:
    from slipstream.bench import jobs
    from slipstream.bench.train.catalogue import FIGURES
    from slipstream.bench.train.command import measure
    from slipstream.bench.train.options import Options

    model, compute = given["model"], given["compute"]
    figure = FIGURES.get(model) if compute == "delay" else None
    seconds = given["compute_time"] or (figure.seconds if figure else None)
    if model not in FIGURES and ":" not in model:
        raise click.BadParameter(f"{', '.join(FIGURES)} or MODULE:FUNCTION", param_hint="--model")
    if compute == "delay" and seconds is None:
        raise click.UsageError("no figure is known of this model: give --compute-time")
    batch = given["batch"] or (figure.batch if figure and given["compute_time"] is None else None)
    options = Options(
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
    environment = {"SLIPSTREAM_LANES": str(given["lanes"])} if given["lanes"] else {}
    if given["encrypt"]:
        environment["SLIPSTREAM_ENCRYPT"] = "1"
    placement = jobs.Placement(
        given["count"],
        placed,
        ssh_command=given["ssh_command"] or settings.ssh_command,
        interface=given["interface"] or settings.interface,
        reducers=given["reducers"],
    )
    try:
        record = measure(
            options,
            placement,
            limit=given["limit"],
            link_rate=given["link_rate"] or settings.lab_rate,
            environment=environment,
            progress=_progress,
        )
        _progress("")
        return record
    except jobs.JobFailed as error:
        _progress("")
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)


def _progress(text: str) -> None:
    """Shows ``text`` in place of what was shown before, on a terminal."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)
