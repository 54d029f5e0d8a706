"""What the commands of ``slipstream bench`` have in common: where they run, what comes out, and how they fail."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slipstream.base.settings import Settings
from slipstream.base.units import parse_rate
from slipstream.cli.options import Whole, parsed, time_option
from slipstream.launch.hosts import Host, parse_hostfile, parse_hosts

if TYPE_CHECKING:
    from slipstream.bench.jobs import Placement

__all__ = [
    "Option",
    "decorated",
    "given_placement",
    "link_options",
    "measuring",
    "output_options",
    "placement_options",
    "shown_on",
    "write_outputs",
]

Option = Callable[[Callable[..., Any]], Callable[..., Any]]
_FAILED, _INTERRUPTED = 2, 130  # exit codes


def placement_options() -> list[Option]:
    """How many ranks, and on which hosts."""
    return [
        click.option("-np", "--num-proc", "count", type=Whole(min=2), required=True, help="Number of ranks."),
        click.option(
            "-H", "--hosts", metavar="HOST:SLOTS,...", help="Hosts, and the number of ranks on each of them."
        ),
        click.option(
            "--hostfile",
            type=click.Path(path_type=Path),
            help="File of lines 'host slots=N'. [default: SLIPSTREAM_HOSTFILE]",
        ),
        click.option("--ssh-command", help="Command that starts a shell on another host. [default: ssh]"),
        click.option("--interface", help="Interface name or address to bind and advertise."),
    ]


def link_options() -> list[Option]:
    """The links between the ranks, and how long all may take."""
    encrypt = "Encrypt slipstream's TCP connections; its peers encrypt nothing. [default: SLIPSTREAM_ENCRYPT]"
    return [
        click.option(
            "--lanes",
            type=Whole(1, 64),
            help="Number of slipstream's TCP connections for bulk data between two ranks; one more carries control "
            "messages.",
        ),
        click.option("--encrypt", is_flag=True, help=encrypt),
        click.option(
            "--link-rate",
            callback=parsed(parse_rate),
            metavar="RATE",
            help="Rate of each host's link, such as 500mbit; adds the time that it allows. "
            "[default: SLIPSTREAM_LAB_RATE]",
        ),
        time_option("--limit", 1800, "For all of it", least=0, most=1e9),
    ]


def output_options(plot: str) -> list[Option]:
    """Files that are written; ``plot`` says what the picture shows."""
    return [
        click.option(
            "--json",
            "json_to",
            is_flag=False,
            flag_value="-",
            metavar="[FILE]",
            help="Write all samples as JSON.",
        ),
        click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help=plot),
    ]


def decorated(command: Callable[..., Any], options: list[Option]) -> Callable[..., Any]:
    """``command`` with the options, which its help shows in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def given_placement(given: Mapping[str, Any], settings: Settings) -> Placement:
    """Where the ranks run: -H, --hostfile or SLIPSTREAM_HOSTFILE, or this host. Raises UsageError, ValueError."""
    from slipstream.bench.jobs import Placement

    return Placement(
        given["count"],
        _given_hosts(given["hosts"], given["hostfile"], settings),
        given["ssh_command"] or settings.ssh_command,
        given["interface"] or settings.interface,
        given.get("reducers"),
    )


def _given_hosts(hosts: str | None, hostfile: Path | None, settings: Settings) -> tuple[Host, ...]:
    if hosts is not None and hostfile is not None:
        raise click.UsageError("give -H or --hostfile, not both")
    if hosts is not None:
        return tuple(parse_hosts(hosts))
    if hostfile is None and settings.hostfile is not None:
        hostfile = Path(settings.hostfile)
    return tuple(parse_hostfile(hostfile)) if hostfile is not None else ()


@contextlib.contextmanager
def measuring(given: Mapping[str, Any]) -> Iterator[None]:
    """Ends the command with a message and its exit code when the block, a measurement, fails.

    What --plot needs is missed before the block begins.
    """
    from slipstream.bench.jobs import JobFailed
    from slipstream.bench.plot import check_plot

    try:
        if given["plot"] is not None:
            check_plot(given["plot"])
        yield
    except JobFailed as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(_FAILED)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.ClickException(str(error)) from None


def shown_on(given: Mapping[str, Any]) -> Any:
    """The stream for people: standard error where JSON takes the other."""
    return sys.stderr if given["json_to"] == "-" else sys.stdout


def write_outputs(record: dict[str, Any], given: Mapping[str, Any]) -> None:
    """The files of `output_options`."""
    from slipstream.bench.kinds import kind_of
    from slipstream.bench.record import write

    if given["json_to"] is not None:
        write(record, given["json_to"])
    if given["plot"] is not None:
        kind_of(record).draw(record, given["plot"])
