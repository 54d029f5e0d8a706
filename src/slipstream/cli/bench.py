"""``slipstream bench``: a command for each collective, in the manner of nccl-tests."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slipstream.base.settings import Settings
from slipstream.base.units import parse_rate, parse_size
from slipstream.bench.collectives import COLLECTIVES, DTYPES, OPS, Collective, growing_sizes, parse_sizes
from slipstream.cli.options import encrypt_option, parsed, time_option
from slipstream.launch.hosts import Host, parse_hostfile, parse_hosts

if TYPE_CHECKING:
    from slipstream.bench.measurement import Options

__all__ = ["bench", "given_hosts"]

_Command = Callable[..., Any]
_WRONG, _FAILED, _INTERRUPTED = 1, 2, 130  # exit codes

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


def given_hosts(hosts: str | None, hostfile: Path | None, settings: Settings) -> tuple[Host, ...]:
    """The hosts of -H, --hostfile or SLIPSTREAM_HOSTFILE; none for this host. Raises UsageError, ValueError."""
    if hosts is not None and hostfile is not None:
        raise click.UsageError("give -H or --hostfile, not both")
    if hosts is not None:
        return tuple(parse_hosts(hosts))
    if hostfile is None and settings.hostfile is not None:
        hostfile = Path(settings.hostfile)
    return tuple(parse_hostfile(hostfile)) if hostfile is not None else ()


_PLACEMENT = [
    click.option(
        "-np", "--num-proc", "count", type=click.IntRange(min=2), required=True, help="Number of ranks."
    ),
    click.option(
        "-H", "--hosts", metavar="HOST:SLOTS,...", help="Hosts, and the number of ranks on each of them."
    ),
    click.option(
        "--hostfile",
        type=click.Path(path_type=Path),
        help="File of lines 'host slots=N'. [default: SLIPSTREAM_HOSTFILE]",
    ),
]
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
        type=click.IntRange(min=1),
        default=15,
        show_default=True,
        help="Number of measured batches.",
    ),
    click.option(
        "--warmup",
        type=click.IntRange(min=0),
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
    click.option(
        "--lanes",
        type=click.IntRange(1, 64),
        help="Number of slipstream's TCP connections between two ranks.",
    ),
    encrypt_option(),
    click.option("--interface", help="Interface name or address to bind and advertise."),
    click.option("--ssh-command", help="Command that starts a shell on another host. [default: ssh]"),
    click.option(
        "--link-rate",
        callback=parsed(parse_rate),
        metavar="RATE",
        help="Rate of the links between hosts, such as 500mbit; adds the time that it allows. "
        "[default: SLIPSTREAM_LAB_RATE]",
    ),
    time_option("--limit", 1800, "For all of it", least=0, most=1e9),
]
_OUTPUT = [
    click.option(
        "--json",
        "json_to",
        is_flag=False,
        flag_value="-",
        metavar="[FILE]",
        help="Write all samples as JSON.",
    ),
    click.option(
        "--plot",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Draw the bandwidth over the message size: FILE.svg or FILE.png.",
    ),
    click.option(
        "--save",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Save the samples in this directory, in a file with the date.",
    ),
    click.option("--inject-error", is_flag=True, hidden=True),
]


def _options(collective: Collective) -> list[Callable[[_Command], _Command]]:
    """The options of a collective's command, in the order of its help."""
    option = click.option
    what = [option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True)]
    if collective.reduces:
        what.append(option("--op", type=click.Choice(OPS), default="sum", show_default=True))
    if collective.rooted:
        what.append(
            option("--root", type=click.IntRange(min=0), default=0, show_default=True, help="The root rank.")
        )
    data: list[Any] = [] if collective.name == "barrier" else [*_SIZES, *what]
    return [*_PLACEMENT, *data, *_MEASUREMENT, *_OUTPUT]


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
    from slipstream.bench.jobs import Placement
    from slipstream.bench.measurement import Options

    settings = Settings.from_environment()
    placement = Placement(
        given["count"],
        given_hosts(given["hosts"], given["hostfile"], settings),
        given["ssh_command"] or settings.ssh_command,
        given["interface"] or settings.interface,
    )
    return Options(
        collective=collective.name,
        placement=placement,
        sizes=_sizes(given),
        against=[name for name in given["against"].split(",") if name],
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
    from slipstream.bench.jobs import JobFailed
    from slipstream.bench.measurement import measure, save, wrong_results
    from slipstream.bench.plot import check_plot, plot
    from slipstream.bench.view import showing

    try:
        if given["plot"] is not None:
            check_plot(given["plot"])
        options = _make_options(collective, given)
        with showing(sys.stderr if given["json_to"] == "-" else sys.stdout) as show:
            record = measure(options, show)
    except JobFailed as error:
        click.echo(f"Error: {error}", err=True)
        return _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    wrong = wrong_results(record)
    for text in wrong:
        click.secho(f"WRONG RESULT: {text}", err=True, fg="red", bold=True)
    if wrong:
        click.secho("some results are wrong: nothing is saved", err=True, fg="red", bold=True)
        return _WRONG
    if given["json_to"] is not None:
        with click.open_file(given["json_to"], "w") as file:
            file.write(json.dumps(record, indent=1) + "\n")
    if given["plot"] is not None:
        plot(record, given["plot"])
    if given["save"] is not None:
        click.echo(f"saved {save(record, given['save'])}", err=True)
    return 0


def _command(collective: Collective) -> click.Command:
    def run(**given: Any) -> None:
        sys.exit(_run(collective, given))

    run.__doc__ = _HELP.format(name=collective.name)
    command: _Command = run
    for decorate in reversed(_options(collective)):
        command = decorate(command)
    epilog = _EPILOG_COLLECTIVE.format(name=collective.name)
    short = f"Measures {collective.name}."
    return click.command(collective.name, epilog=epilog, short_help=short)(command)


for _collective in COLLECTIVES.values():
    bench.add_command(_command(_collective))
