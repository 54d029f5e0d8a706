"""``slipstream lab``: an emulated cluster on this machine."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from slipstream.base.units import format_rate, parse_rate
from slipstream.cli.options import Whole, parsed, time_option
from slipstream.lab import registry
from slipstream.lab.command_runs import run_command
from slipstream.lab.errors import LabError
from slipstream.lab.lab import Lab, describe
from slipstream.lab.links import device_name
from slipstream.lab.measure import Flow, measure, neighbours
from slipstream.lab.spec import Spec, load, make

__all__ = ["lab"]

F = TypeVar("F", bound=Callable[..., Any])

_EPILOG = """\b
Examples:
  slipstream lab run --hosts 4 --rate 500mbit -- slipstream run -np 4 -- python train.py
  slipstream lab run --hosts 2 --paths 100mbit,200mbit,400mbit,800mbit -- slipstream bench all_reduce -np 2
  slipstream lab run --hosts 3 --rate 1gbit --event 5s:rate:h2:50mbit --event 9s:cut:h3 -- ./job.sh
  slipstream lab up --hosts 4 --rate 500mbit; slipstream lab exec h1 -- bash; slipstream lab down
  slipstream lab run --spec lab.yaml -- slipstream run -np 8 -- python train.py
"""

_EPILOG_EXEC = """\b
Examples:
  slipstream lab exec h1 -- bash
  slipstream lab exec --name lab h2 hostname
"""


class _Lab(click.Group):
    """Turns what goes wrong in a lab into an error message."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (LabError, ValueError) as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=_Lab, epilog=_EPILOG)
def lab() -> None:
    """Emulates a cluster on this machine: hosts with links of any rate, to train, test and measure on.

    Hosts h1, h2, ... are namespaces on a switch; `slipstream run` on one of them finds the others by itself. They
    share this machine's processors and files. Needs Linux and root.
    """


def _rates(text: str) -> tuple[int, ...]:
    return tuple(parse_rate(word) for word in text.split(","))


_OPTIONS = [
    click.option("--hosts", type=Whole(1, 250), help="Number of hosts. [default: 2]"),
    click.option("--slots", type=Whole(1, 1024), help="Number of ranks on each host. [default: 1]"),
    click.option(
        "--reducers",
        type=Whole(0, 250),
        help="Number of additional hosts that are marked as reducers. [default: 0]",
    ),
    click.option(
        "--interfaces",
        type=Whole(1, 8),
        help="Number of network interfaces of each host; each has its own link. [default: 1]",
    ),
    click.option("--ipv6-only", "family", flag_value="ipv6", help="Give the hosts only IPv6 addresses."),
    click.option(
        "--ipv6",
        "family",
        flag_value="both",
        help="Give the hosts IPv4 and IPv6 addresses. [default: only IPv4]",
    ),
    click.option(
        "--rate",
        metavar="RATE",
        callback=parsed(parse_rate),
        help="Rate of each link in each direction, such as 500mbit or 2.5gbit, in bits. [default: no limit]",
    ),
    click.option(
        "--paths",
        metavar="RATE,RATE,...",
        callback=parsed(_rates),
        help="Rates of several paths of each link; each connection takes one of them.",
    ),
    click.option(
        "--delay", metavar="TIME", help="Delay in one direction, such as 1ms (needs the kernel's netem)."
    ),
    click.option(
        "--loss",
        metavar="PERCENT",
        help="Share of the packets that are lost, such as 0.1% (needs the kernel's netem).",
    ),
    click.option("--mtu", type=Whole(576, 65535), help="Largest packet in bytes. [default: 9000]"),
    click.option(
        "--spec",
        "file",
        type=click.Path(path_type=Path),
        help="Read all these options from a YAML or JSON file.",
    ),
    click.option(
        "--ssh", is_flag=True, help="Start an ssh server on each host, instead of a substitute for ssh."
    ),
]
_new_name = click.option("--name", help="Name of the new lab.")
_name = click.option("--name", help="Name of the lab. [default: the one that is up]")


def _lab_options(function: F) -> F:
    for option in reversed([*_OPTIONS, _new_name]):
        function = option(function)
    return function


def _spec(file: Path | None, given: dict[str, Any]) -> Spec:
    data = load(file) if file is not None else {}
    return make(**{**data, **{key: value for key, value in given.items() if value not in (None, ())}})


def _say(text: str) -> None:
    click.echo(f"slipstream lab: {text}", err=True)


@lab.command("run", context_settings={"allow_interspersed_args": False}, epilog=_EPILOG)
@_lab_options
@click.option(
    "--event",
    "events",
    multiple=True,
    metavar="TIME:...",
    help="5s:rate:h2:50mbit, 5s:path:h2:1:50mbit, 5s:cut:h2, 9s:heal:h2, 5s:cut:h2:1.",
)
@click.option("--on", "host", help="The host that runs COMMAND. [default: the first]")
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def run(
    file: Path | None,
    ssh: bool,
    name: str | None,
    host: str | None,
    quiet: bool,
    command: tuple[str, ...],
    **given: Any,
) -> None:
    """Makes a lab, runs COMMAND on its first host, and removes everything when that ends.

    The exit code is the command's. What a killed run has left is removed by the next start of any lab.
    """
    spec = _spec(file, given)
    say: Callable[[str], None] = (lambda _: None) if quiet else _say
    start = time.monotonic()
    with Lab(spec, name=name, ssh=ssh) as made:
        say(f"{made.name}: {describe(spec)}, up in {time.monotonic() - start:.2f} s")
        code = run_command(made, host or made.hosts[0], command, events=spec.events, say=say)
    sys.exit(code)


@lab.command()
@_lab_options
def up(file: Path | None, ssh: bool, name: str | None, **given: Any) -> None:
    """Makes a lab that stays until `slipstream lab down`, and prints its name."""
    made = Lab(_spec(file, given), name=name or "lab", ssh=ssh, keep=True)
    click.echo(made.name)
    alone = [record.name for record in registry.records() if record.keep] == [made.name]
    more = "" if alone and name is None else f"--name {made.name} "
    _say(f"{describe(made.spec)}: {', '.join(made.hosts)}")
    _say(f"next: slipstream lab exec {more}{made.hosts[0]} -- bash; slipstream lab down {made.name}")


@lab.command()
@click.option("--name", help="Name of the lab. [default: the one that `slipstream lab up` made]")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Remove all labs of this machine, also those of commands that still run.",
)
@click.argument("lab_name", metavar="[NAME]", required=False)
def down(name: str | None, everything: bool, lab_name: str | None) -> None:
    """Removes a lab, by NAME or --name: its processes, its network, its files.

    Without a name it removes the lab of `slipstream lab up`, if there is one. A lab of `slipstream lab run` ends with
    its command; to remove it earlier, name it.
    """
    if sum([name is not None, lab_name is not None, everything]) > 1:
        raise click.UsageError("give one of NAME, --name and --all")
    name = name or lab_name
    registry.sweep()
    names = [record.name for record in registry.records()] if everything else [registry.find_kept(name).name]
    for one in names:
        registry.destroy(one)
        _say(f"{one} is down")


@lab.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(as_json: bool) -> None:
    """Prints the labs that are up and their hosts."""
    records = registry.records()
    if as_json:
        click.echo(json.dumps([_as_dict(record) for record in records], indent=2))
        return
    for record in records:
        click.echo(f"{record.name}: {describe(record.spec)}")
        for host in record.spec.hosts:
            words = [f"  {host.name:<8} {record.spec.address(host.name):<12}"]
            words.append("reducer" if host.reducer else f"{host.slots} slot{'' if host.slots == 1 else 's'}")
            words.append(format_rate(host.line_rate) if host.line_rate is not None else "no limit")
            words += ["paths " + ", ".join(map(format_rate, host.paths))] if host.paths else []
            cut = record.cut_interfaces(host.name)
            words += ["CUT"] if len(cut) == record.spec.interfaces else [f"CUT {device_name(k)}" for k in cut]
            click.echo("  ".join(words))
    if not records:
        _say("no lab is up")


def _as_dict(record: registry.LabRecord) -> dict[str, Any]:
    hosts = [
        dataclasses.asdict(host)
        | {"address": record.spec.address(host.name), "cut": bool(record.cut_interfaces(host.name))}
        for host in record.spec.hosts
    ]
    return {
        "name": record.name,
        "stays": record.keep,
        "mtu": record.spec.mtu,
        "interfaces": record.spec.interfaces,
        "hosts": hosts,
    }


@lab.command("exec", context_settings={"allow_interspersed_args": False}, epilog=_EPILOG_EXEC)
@_name
@click.argument("host")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def execute(name: str | None, host: str, command: tuple[str, ...]) -> None:
    """Runs COMMAND on HOST of a lab that is up, in this folder. A `--` may stand before COMMAND."""
    # click ends its own options at HOST, and leaves what stands behind it to the command: the `--` too.
    command = command[1:] if command[0] == "--" else command
    if not command:
        raise click.UsageError(f"the command for {host} is missing: slipstream lab exec {host} -- bash")
    made = Lab.attach(name)
    sys.exit(run_command(made, host, command, say=_say))


@lab.command()
@_name
@click.option("--path", type=Whole(min=1), help="Change only this path (the first is 1).")
@click.argument("host")
@click.argument("rate", callback=parsed(parse_rate))
def rate(name: str | None, host: str, rate: int, path: int | None) -> None:
    """Changes the rate of HOST's link, at once; a job that runs goes on."""
    Lab.attach(name).rate(host, rate, path=path or 0)


_interface = click.option(
    "--interface", type=Whole(min=1), help="Change only this interface (the first is 1)."
)


@lab.command()
@_name
@_interface
@click.argument("host")
def cut(name: str | None, host: str, interface: int | None) -> None:
    """Pulls HOST's cable out."""
    Lab.attach(name).cut(host, interface or 0)


@lab.command()
@_name
@_interface
@click.argument("host")
def heal(name: str | None, host: str, interface: int | None) -> None:
    """Plugs HOST's cable in again."""
    Lab.attach(name).heal(host, interface or 0)


@lab.command("measure")
@_name
@click.option(
    "--flows",
    type=Whole(1, 256),
    default=1,
    show_default=True,
    help="Number of connections per host.",
)
@time_option("--seconds", 2, "How long", least=0.1, most=600)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def measured(name: str | None, flows: int, seconds: float, as_json: bool) -> None:
    """Measures what TCP gets: every host sends to the next one, all at once."""
    made = Lab.attach(name)
    linked = made.linked()
    if len(linked) < len(made.hosts):
        gone = ", ".join(host for host in made.hosts if host not in linked)
        _say(f"left out, as their cables are out: {gone} (to plug one in: slipstream lab heal HOST)")
    if len(linked) < 2:
        raise LabError(f"two hosts that are not cut are needed; this lab has {len(linked)}")
    found = measure(made, neighbours(linked), flows=flows, seconds=seconds)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(flow) for flow in found], indent=2))
        return
    for host in made.spec.hosts:
        if host.name not in linked:
            continue
        own = [flow for flow in found if flow.source == host.name]
        total = sum(flow.rate for flow in own)
        share = (
            f"  {100 * total / host.line_rate:.1f} % of {format_rate(host.line_rate)}"
            if host.line_rate
            else ""
        )
        click.echo(f"{host.name} -> {own[0].target}  {_short(total)}{share}")
        for path in sorted({flow.path for flow in own if flow.path}):
            click.echo(f"  path {path} of {format_rate(host.paths[path - 1])}: {_flows(own, path)}")


def _flows(flows: list[Flow], path: int) -> str:
    rates = [flow.rate for flow in flows if flow.path == path]
    return f"{_short(sum(rates))} in {len(rates)} connections of {_short(statistics.median(rates))}"


def _short(rate: float) -> str:
    return format_rate(float(f"{rate:.4g}"))
