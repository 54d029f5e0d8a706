"""``slipstream bench``: a command for each collective, in the manner of nccl-tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slipstream.base.settings import Settings
from slipstream.base.units import parse_size
from slipstream.bench.collective.catalogue import (
    COLLECTIVES,
    DTYPES,
    OPS,
    Collective,
    growing_sizes,
    parse_sizes,
)
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
from slipstream.cli.options import Whole, parsed

if TYPE_CHECKING:
    from slipstream.bench.collective.command import Options

__all__ = ["bench"]

_WRONG = 1  # exit code

_EPILOG = """\b
Examples:
  slipstream bench all_reduce -np 4 --against gloo,mpi
  slipstream bench all_gather -np 2 --min 8 --max 128M --factor 2 --dtype float16
  slipstream bench all_reduce -np 4 -H n1,n2,n3,n4 --link-rate 10gbit --json result.json --plot result.svg
  slipstream lab run --hosts 4 --rate 500mbit -- slipstream bench all_reduce -np 4 --sizes 4M,16M
"""

_EPILOG_COLLECTIVE = """\b
Examples:
  slipstream bench {name} -np 2
  slipstream bench {name} -np 4 --against gloo,mpi --repeats 25 --json
  slipstream bench {name} -np 8 -H n1:4,n2:4 --interface eth0 --link-rate 10gbit
  slipstream bench {name} -np 4 --algorithm all --against ''
"""

_HELP = """Measures {name} with slipstream, and with its peers in the same processes.

    Prints a row for each size and contender: the time of a call (the median, the least and the 90th percentile over
    the repeats, of the slowest rank), bytes / time (algbw), that times the factor of nccl-tests (busbw), how many
    elements were wrong, how many times as long each peer takes (of medians, with the quartiles over the repeats),
    and the time that no {name} can beat here. The peers take turns, batch by batch. Ends with code 1 if any result
    was wrong, with 2 if the ranks failed.
    """


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EPILOG)
def bench() -> None:
    """Measures slipstream against its peers.

    Peers: gloo (PyTorch), mpi (Open MPI and mpi4py), horovod, nccl (GPUs). One that is not installed is named as
    missing. slipstream-shared (memory of slipstream.empty) and slipstream-torch (slipstream.torch) may be given
    as peers too, for all_reduce.
    """


_SIZES = [
    click.option(
        "--sizes",
        callback=parsed(parse_sizes),
        help="Message sizes in bytes, such as 4K,64K,1M. [default: 4K,64K,1M,16M,64M]",
    ),
    click.option(
        "--min",
        "least",
        callback=parsed(parse_size),
        metavar="SIZE",
        help="The smallest message size of a series; needs --max.",
    ),
    click.option(
        "--max",
        "most",
        callback=parsed(parse_size),
        metavar="SIZE",
        help="The largest message size of the series.",
    ),
    click.option(
        "--factor",
        type=float,
        default=2.0,
        show_default=True,
        help="The factor from one size of the series to the next.",
    ),
]
_MEASUREMENT = [
    click.option(
        "--repeats",
        type=Whole(min=1),
        default=15,
        show_default=True,
        help="Number of measured batches.",
    ),
    click.option(
        "--warmup",
        type=Whole(min=0),
        default=2,
        show_default=True,
        help="Number of batches before the measurement.",
    ),
    click.option(
        "--against",
        default="gloo",
        show_default=True,
        metavar="NAME,...",
        help="Libraries to compare with, separated by commas; '' for none.",
    ),
    click.option("--transport", type=click.Choice(["auto", "tcp", "shm"]), default="auto", show_default=True),
    *link_options(),
]
_ALGORITHM = click.option(
    "--algorithm",
    "algorithms",
    default="",
    metavar="NAME,...",
    help="Measure these algorithms of slipstream as well, 'all' for every one. 'vs fastest' is the time of the "
    "fastest of them, in multiples of that of slipstream's choice.",
)
_OUTPUT = [
    *output_options("Draw the bandwidth over the message size: FILE.svg or FILE.png."),
    click.option(
        "--save",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Save the samples in this directory, in a file with the date.",
    ),
    click.option("--inject-error", is_flag=True, hidden=True),
]


def _options(collective: Collective) -> list[Option]:
    """The options of a collective's command, in the order of its help."""
    option = click.option
    what = [option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True)]
    if collective.reduces:
        what.append(option("--op", type=click.Choice(OPS), default="sum", show_default=True))
    if collective.rooted:
        what.append(option("--root", type=Whole(min=0), default=0, show_default=True, help="The root rank."))
    data: list[Any] = [] if collective.name == "barrier" else [*_SIZES, *what]
    if _has_algorithms(collective):
        data.append(_ALGORITHM)
    return [*placement_options(), *data, *_MEASUREMENT, *_OUTPUT]


def _has_algorithms(collective: Collective) -> bool:
    return collective.name not in ("barrier", "send_recv")


def _sizes(given: dict[str, Any]) -> list[int]:
    sizes, least, most = given.get("sizes"), given.get("least"), given.get("most")
    if (least is None) != (most is None):
        raise click.UsageError("--min and --max belong together")
    if least is None or most is None:
        return sizes or [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
    if sizes is not None:
        raise click.UsageError("give --sizes or --min and --max, not both")
    return growing_sizes(least, most, given["factor"])


def _make_options(collective: Collective, given: dict[str, Any]) -> Options:
    from slipstream.bench.collective.command import Options

    settings = Settings.from_environment()
    return Options(
        collective=collective.name,
        placement=given_placement(given, settings),
        sizes=_sizes(given),
        against=[name for name in given["against"].split(",") if name],
        algorithms=[name for name in given.get("algorithms", "").split(",") if name],
        dtype=given.get("dtype", "float32"),
        op=given.get("op", "sum"),
        root=given.get("root", 0),
        repeats=given["repeats"],
        warmup=given["warmup"],
        transport=given["transport"],
        lanes=given["lanes"],
        encrypt=given["encrypt"] or settings.encrypt,
        link_rate=given["link_rate"] or settings.lab_rate,
        limit=given["limit"],
        inject_error=given["inject_error"],
    )


def _run(collective: Collective, given: dict[str, Any]) -> int:
    from slipstream.bench.collective.command import measure, save, wrong_results
    from slipstream.bench.collective.report import report
    from slipstream.bench.view import showing

    with measuring(given), showing(shown_on(given)) as show:
        record = measure(_make_options(collective, given), lambda found: show(report(found)))
    wrong = wrong_results(record)
    for text in wrong:
        click.secho(f"WRONG RESULT: {text}", err=True, fg="red", bold=True)
    if wrong:
        click.secho("some results are wrong: nothing is saved", err=True, fg="red", bold=True)
        return _WRONG
    write_outputs(record, given)
    if given["save"] is not None:
        click.echo(f"saved {save(record, given['save'])}", err=True)
    return 0


def _command(collective: Collective) -> click.Command:
    def run(**given: Any) -> None:
        sys.exit(_run(collective, given))

    run.__doc__ = _HELP.format(name=collective.name)
    command = decorated(run, _options(collective))
    lines = _EPILOG_COLLECTIVE.format(name=collective.name).splitlines()
    epilog = "\n".join(line for line in lines if _has_algorithms(collective) or "--algorithm" not in line)
    short = f"Measures {collective.name}."
    return click.command(collective.name, epilog=epilog, short_help=short)(command)


for _collective in COLLECTIVES.values():
    bench.add_command(_command(_collective))
