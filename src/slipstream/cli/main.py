"""The commands: run, top, reducer, lab, bench, plan, check, timeline, version."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from slipstream.base.dtypes import WIRE_NAMES
from slipstream.base.settings import REPLACEABLE, Settings, parse_reducers
from slipstream.cli.bench import bench
from slipstream.cli.bench_train import train
from slipstream.cli.check import Finding, inspect, installed_version, works
from slipstream.cli.lab import lab
from slipstream.cli.options import Name, Whole, file_name, parsed, seconds, time_option
from slipstream.cli.plan import plan
from slipstream.cli.reducer import reducer
from slipstream.cli.root import Root
from slipstream.cli.timeline import timeline
from slipstream.cli.top import top
from slipstream.cli.tuning import show_tuning
from slipstream.launch.agent import advice
from slipstream.launch.hosts import Host, parse_hostfile, parse_hosts, place
from slipstream.launch.launcher import run_job
from slipstream.launch.options import JobOptions

__all__ = ["main"]

_EPILOG_RUN = """\b
Examples:
  slipstream run -np 4 -- python train.py --epochs 3
  slipstream run -H node1:4,node2:4 -- python train.py
  slipstream run -np 8 --hostfile hosts --output-dir logs -- python train.py
  slipstream run -np 4 --hostfile hosts --reducers auto -- python train.py
  slipstream run -np 4 --timeline trace.json -- python train.py
  slipstream run -np 4 --summary -- python train.py        # where the time went; slipstream top: live
  slipstream run -np 4 --metrics-port 9400 -- python train.py   # Prometheus: curl localhost:9400/metrics
  slipstream run -H node1:1,node2:1 --autotune on --autotune-log tuning.jsonl -- python train.py
  slipstream run -np 4 --horovod -- python train.py        # its 'import horovod.torch' is ours
  slipstream run -np 4 --mpi4jax -- python solve.py        # its 'import mpi4jax' is ours
  slipstream run -np 4 --replace gloo -- python train.py   # its init_process_group("gloo") is ours

Settings without an option are SLIPSTREAM_* variables: docs/settings.md lists them all, -e sets them.
"""


_EPILOG_CHECK = """\b
Examples:
  slipstream check
  slipstream check --link node2 --lanes 8
  slipstream check --tuning
"""


_COUNTS = ("-np", "-n", "--num-proc", "-H", "--hosts", "--hostfile")


class _Ranks(Whole):
    """A number of ranks; ``-np2``, too, which click reads as ``-n p2``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        joined = isinstance(value, str) and re.fullmatch(r"p\d+", value)
        return super().convert(value[1:] if joined else value, param, ctx)


# What replaces an option of torchrun.
_TORCHRUN = {
    "--nproc-per-node": "-np N is the number of processes of all hosts together",
    "--nnodes": "-H HOST:SLOTS,... names the hosts",
    "--node-rank": "one command starts all hosts: -H HOST:SLOTS,...",
    "--standalone": "leave it out",
    "--master-addr": "leave it out: the launcher is where the ranks meet",
    "--master-port": "leave it out: the launcher finds a free port",
    "--rdzv-backend": "leave it out: the launcher is where the ranks meet",
    "--rdzv-endpoint": "leave it out: the launcher is where the ranks meet",
    "--max-restarts": "--min-np N lets a job go on with fewer ranks (docs/howto/elastic.md)",
}


class _Run(click.Command):
    """Answers the options of Horovod's command and of torchrun that it does not have."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; UsageError says what an option of ``horovodrun`` is here."""
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            if error.param is None or error.param.name != "autotune":
                raise
            text = (
                f"{error.format_message()} (--autotune of horovodrun, which has no value, is --autotune on.)"
            )
            raise click.UsageError(text, ctx) from None
        except click.NoSuchOption as error:
            from slipstream.cli.horovod_flags import FLAGS, meaning  # few will ever need it

            option = error.option_name
            if option == "--check-build":
                raise click.UsageError(
                    "`slipstream check` says what is built; so does `horovodrun --check-build`", ctx
                ) from None
            of_torchrun = _TORCHRUN.get(option.replace("_", "-"))
            if of_torchrun is not None:
                text = f"{option} is an option of torchrun; for slipstream run: {of_torchrun}"
                raise click.UsageError(text, ctx) from None
            known = [flag for flag in FLAGS if option in flag.names.split()]
            if not known:
                raise
            text = f"{option} is an option of horovodrun; for slipstream run: {meaning(known[0])}"
            raise click.UsageError(text, ctx) from None


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(installed_version(), prog_name="slipstream", message="%(prog)s %(version)s")
def main() -> None:
    """Runs and inspects data-parallel training jobs.

    \b
    Examples:
      slipstream run -np 2 -- python train.py
      slipstream check
    """


@main.command(cls=_Run, context_settings={"allow_interspersed_args": False}, epilog=_EPILOG_RUN)
@click.option(
    "-np",
    "-n",
    "--num-proc",
    "count",
    type=_Ranks(min=1),
    help="Number of ranks. [default: the slots of the hosts given]",
)
@click.option(
    "-H", "--hosts", metavar="HOST:SLOTS,...", help="Hosts, and the number of ranks on each of them."
)
@click.option(
    "--hostfile",
    "-hostfile",
    type=click.Path(path_type=Path),
    help="File of lines 'host slots=N' or 'host:N'. [default: SLIPSTREAM_HOSTFILE]",
)
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    help="Also write the output of rank N to DIR/rank.N/stdout and DIR/rank.N/stderr, unfiltered: these files may "
    "contain escape sequences, so read them with less.",
)
@click.option(
    "--start-timeout",
    metavar="TIME",
    callback=parsed(seconds),
    help="Time in which all ranks must have joined by slipstream.init() or hvd.init(): seconds, or 90s, 5m. "
    "init_process_group() of PyTorch waits for its own timeout, or for this one if it is given and shorter. "
    "[default: 60]",
)
@click.option(
    "--timeout",
    metavar="TIME",
    callback=parsed(seconds),
    help="Time limit of an operation: seconds, or 90s, 5m, 1h. [default: 1800]",
)
@click.option(
    "--min-np",
    type=Whole(min=1),
    help="Continue while at least this many ranks are left, for scripts that shrink their job when a rank is lost "
    "(Group.shrink). [default: the first rank that fails ends the job]",
)
@click.option(
    "--job",
    metavar="NAME",
    help="Name of the job, for slipstream top --job, metrics and messages. [default: job]",
)
@click.option("--interface", help="Network interfaces to use: names or addresses, separated by commas.")
@click.option(
    "--transport",
    type=click.Choice(["auto", "tcp", "shm"]),
    help="Transport between ranks of one host. [default: auto, which is shared memory]",
)
@click.option(
    "--lanes",
    type=Whole(1, 64),
    help="Number of TCP connections for bulk data between two ranks; one more carries control messages. "
    "[default: 2, and 16 between hosts where these carry more]",
)
@click.option(
    "--encrypt",
    is_flag=True,
    help="Encrypt all TCP connections of the job: AES-GCM, with keys from its secret. [default: SLIPSTREAM_ENCRYPT]",
)
@click.option(
    "--dscp",
    type=Whole(0, 63),
    help="DSCP class of the job's packets between hosts, such as 34 for AF41: switches can give them a queue of their "
    "own. [default: SLIPSTREAM_DSCP, or the system's]",
)
@click.option(
    "--wire",
    type=Name(WIRE_NAMES),
    help="What large float32 tensors travel as between hosts when torch.distributed (DDP) or the Horovod API sums or "
    "averages them: half of the bytes, or a quarter. [default: exact]",
)
@click.option(
    "--wire-gather",
    is_flag=True,
    help="Float32 tensors that torch.distributed gathers, such as the parameters of FSDP, or exchanges by all_to_all "
    "travel in the type of --wire, too. It rounds them: example: --wire bf16 --wire-gather.",
)
@click.option(
    "--fusion-threshold",
    metavar="SIZE",
    help="Bytes of the buffers in which small sums of the Horovod API that have names travel together; 0: each travels "
    "alone. Example: --fusion-threshold 4MiB. [default: 1MiB]",
)
@click.option(
    "--hierarchy",
    type=click.Choice(["auto", "on", "off"]),
    help="Whether an all_reduce of ranks that share hosts sums within each host first, so that a host sends as much as "
    "one rank would: on, off, or auto, where that is quicker. Example: --hierarchy off, to compare. [default: auto]",
)
@click.option(
    "--autotune",
    type=click.Choice(["off", "auto", "on"]),
    help="Tune large all-reduces between hosts in the first steps. auto: what leaves results as they are (lanes, "
    "chunks). on: the algorithm as well, which changes the order of additions. [default: off]",
)
@click.option(
    "--autotune-log",
    metavar="FILE",
    callback=parsed(file_name),
    help="Add a line of JSON to FILE for each setting that tuning tries, and for what it chooses.",
)
@click.option(
    "--timeline",
    metavar="FILE",
    callback=parsed(file_name),
    help="Write a timeline of all ranks, to open in Perfetto or Chrome. With {rank} in FILE, each rank writes its own "
    "file. See slipstream timeline.",
)
@click.option(
    "--timeline-detail",
    type=click.Choice(["operations", "steps"]),
    help="With steps, the timeline also shows each chunk in each step of a plan. [default: operations]",
)
@click.option(
    "--summary",
    metavar="FILE.json",
    is_flag=False,
    flag_value="1",
    help="Print at the end where the time went: steps, communication, bandwidths, the straggler, what to try; with "
    "FILE.json, write that instead. Put -- before the command. [default: with -v]",
)
@click.option(
    "--metrics-port",
    type=Whole(1, 65535),
    help="Serve Prometheus metrics of each rank at this port + its number on the host: /metrics, /healthz.",
)
@click.option(
    "--metrics-bind",
    metavar="ADDRESS",
    help="Numeric address at which the metrics are served. [default: 127.0.0.1]",
)
@click.option(
    "-e", "--env", "variables", metavar="VAR=VAL", multiple=True, help="Set a variable for all ranks."
)
@click.option(
    "-x",
    "exported",
    metavar="VAR[=VAL]",
    multiple=True,
    help="Send a variable of this environment to all hosts. SLIPSTREAM_*, OMP_*, NCCL_* and some more are sent "
    "without -x (docs/running.md lists them). VAR=VAL sets the variable, as -e does.",
)
@click.option(
    "--replace",
    metavar="NAME,...",
    help="Serve these backends of torch.distributed by slipstream, without a change to the script. "
    f"Names: {', '.join(REPLACEABLE)}.",
)
@click.option(
    "--horovod",
    is_flag=True,
    help="Run scripts of Horovod unchanged: 'import horovod.torch as hvd' imports slipstream, also where Horovod is "
    "installed. See docs/migrating.md.",
)
@click.option(
    "--mpi4jax",
    is_flag=True,
    help="Run scripts of mpi4jax unchanged: 'import mpi4jax' and 'from mpi4py import MPI' import slipstream, also "
    "where these are installed. See docs/mpi4jax.md.",
)
@click.option(
    "--reducers",
    metavar="HOST[:PORT],...|auto",
    help="Reducers that run already (see slipstream reducer), or auto: one for this job on each host that the host "
    "file marks 'reducer'. [default: SLIPSTREAM_REDUCERS]",
)
@click.option("--ssh-port", "-p", type=Whole(1, 65535), help="Port of the ssh servers.")
@click.option("--ssh-identity-file", "-i", metavar="FILE", help="Private key for ssh.")
@click.option("--ssh-command", help="Command that starts a shell on another host. [default: ssh]")
@click.option(
    "-v",
    "--verbose",
    count=True,
    help="Print which ranks run where, and which transports they use; -vv also prints debugging output.",
)
@click.option("--timestamps", is_flag=True, help="Begin each line with the time.")
@click.option("--full-traceback", is_flag=True, help="Show slipstream's own frames in tracebacks as well.")
@click.option("--no-prefix", is_flag=True, help="Do not begin lines with the rank.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def run(
    count: int | None,
    hosts: str | None,
    hostfile: Path | None,
    output_dir: Path | None,
    start_timeout: float | None,
    min_np: int | None,
    interface: str | None,
    variables: tuple[str, ...],
    exported: tuple[str, ...],
    horovod: bool,
    mpi4jax: bool,
    reducers: str | None,
    ssh_port: int | None,
    ssh_identity_file: str | None,
    ssh_command: str | None,
    verbose: int,
    timestamps: bool,
    no_prefix: bool,
    command: tuple[str, ...],
    **given: Any,
) -> None:
    """Runs COMMAND as the ranks of a job, here or on several hosts through ssh.

    When a rank fails, the others are ended and its exit code is returned, unless --min-np lets them go on. Ctrl-C
    ends all ranks; a second one kills them at once. The ranks get SLIPSTREAM_*, RANK, WORLD_SIZE, LOCAL_RANK,
    MASTER_ADDR, MASTER_PORT and HOROVOD_* variables.
    """
    if hosts is not None and hostfile is not None:
        raise click.UsageError("give -H or --hostfile, not both")
    env = _assigned(variables, exported)
    env |= _settings(**given)
    if start_timeout is not None:
        env["SLIPSTREAM_START_TIMEOUT"] = f"{start_timeout:g}"
    if verbose:
        env.setdefault("SLIPSTREAM_LOG", "info" if verbose == 1 else "debug")
        if "SLIPSTREAM_SUMMARY" not in os.environ:
            env.setdefault("SLIPSTREAM_SUMMARY", "1")
    try:
        settings = Settings.from_environment()
        places = _places(count, hosts, hostfile or settings.hostfile, command)
        count = sum(host.slots for host in places) if count is None else count
        if min_np is not None and min_np > count:
            raise click.UsageError(f"--min-np {min_np} is more than the number of ranks, which is {count}")
        options = JobOptions(
            argv=list(command),
            placed=place(count, places),
            cwd=os.getcwd(),
            env=env,
            output_dir=output_dir,
            start_timeout=start_timeout or settings.start_timeout,
            min_np=min_np,
            interface=interface or settings.interface,
            prefix=not no_prefix,
            timestamps=timestamps,
            verbose=verbose > 0,
            ssh_command=ssh_command or settings.ssh_command,
            ssh_port=ssh_port,
            ssh_identity_file=ssh_identity_file,
            reducers=_reducers(reducers, env, settings),
            reducer_hosts=_reducer_hosts(places) if reducers == "auto" else (),
            horovod=horovod,
            mpi4jax=mpi4jax,
        )
        code = run_job(options)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.ClickException(str(error)) from None
    sys.exit(code)


def _places(
    count: int | None, hosts: str | None, hostfile: str | Path | None, command: Sequence[str]
) -> list[Host]:
    """The hosts that are named, or this one."""
    if hosts is not None:
        return parse_hosts(hosts)
    if hostfile is not None:
        return parse_hostfile(Path(hostfile))
    if count is None:
        also = "" if shutil.which(command[0]) else advice(command[0])
        if any(word in _COUNTS or re.fullmatch(r"-np?\d+", word) for word in command[1:]):
            also = f"; options stand before the command: slipstream run -np 4 -- {command[0]} ...{also}"
        raise click.UsageError(
            f"say how many ranks: -np 4; or name hosts and their slots: -H localhost:4{also}"
        )
    return [Host("localhost", count)]


def _settings(**given: Any) -> dict[str, str]:
    """The variables for the options that stand for one, checked here: a mistake shall not wait for the ranks."""
    env = {}
    for name, value in given.items():
        if value is None or value is False:
            continue
        variable = f"SLIPSTREAM_{name.upper()}"
        env[variable] = "1" if value is True else f"{value:g}" if isinstance(value, float) else str(value)
        try:
            Settings.from_environment({variable: env[variable]})
        except ValueError as error:
            option = "--" + name.replace("_", "-")
            raise click.BadParameter(str(error).partition(": ")[2], param_hint=option) from None
    return env


def _assigned(variables: tuple[str, ...], exported: tuple[str, ...]) -> dict[str, str]:
    """What ``-x`` and ``-e`` say."""
    env = {}
    for one in exported:
        name, equals, value = one.partition("=")
        if not name or (not equals and name not in os.environ):
            raise click.UsageError(f"-x {one}: this environment has no such variable; write -x {one}=VALUE")
        env[name] = value if equals else os.environ[name]
    for one in variables:
        name, equals, value = one.partition("=")
        if not name or not equals:
            raise click.UsageError(f"-e {one}: expected VAR=VAL")
        env[name] = value
    return env


def _reducers(given: str | None, env: dict[str, str], settings: Settings) -> tuple[tuple[str, int], ...]:
    if given == "auto":
        return ()
    text = given or env.get("SLIPSTREAM_REDUCERS")
    try:
        return parse_reducers(text) if text is not None else settings.reducers
    except ValueError as error:
        raise ValueError(f"--reducers: {error}, got {text!r:.80}") from None


def _reducer_hosts(hosts: Sequence[Host]) -> tuple[str, ...]:
    found = tuple(host.name for host in hosts if host.reducer)
    if not found:
        raise ValueError("--reducers auto: the host file marks no host 'reducer'")
    return found


@main.command(epilog=_EPILOG_CHECK)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--link", metavar="HOST", help="Send data to HOST for some seconds and show the rate of each connection."
)
@time_option("--seconds", 3, "How long, with --link", least=0.1, most=600)
@click.option(
    "--lanes",
    type=Whole(1, 64),
    help="Number of TCP connections for bulk data, with --link; one more carries control messages. "
    "[default: 2, and 16 where these carry more]",
)
@click.option(
    "--interface", help="Network interfaces to use, with --link: names or addresses, separated by commas."
)
@click.option("--ssh-command", help="Command that starts a shell on HOST. [default: ssh]")
@click.option(
    "--tuning", is_flag=True, help="Print what earlier jobs have chosen by --autotune, and what it gained."
)
@click.option("--clear", is_flag=True, help="With --tuning: forget it.")
def check(
    as_json: bool,
    link: str | None,
    seconds: float,
    lanes: int | None,
    interface: str | None,
    ssh_command: str | None,
    tuning: bool,
    clear: bool,
) -> None:
    """Prints what slipstream finds on this machine, and what to fix; or how the link to another host does; or what
    tuning has chosen.

    Exits with 1 if something will not work.
    """
    if clear and not tuning:
        raise click.UsageError("--clear goes with --tuning")
    if tuning:
        sys.exit(show_tuning(as_json=as_json, clear=clear))
    if link is not None:
        sys.exit(_check_link(link, as_json, seconds, lanes, interface, ssh_command))
    findings = inspect()
    if as_json:
        click.echo(json.dumps([finding.as_dict() for finding in findings], indent=2))
    else:
        for finding in findings:
            _show(finding)
    sys.exit(0 if works(findings) else 1)


def _check_link(
    host: str,
    as_json: bool,
    seconds: float,
    lanes: int | None,
    interface: str | None,
    ssh_command: str | None,
) -> int:
    probe = [sys.executable, "-m", "slipstream.cli.link_check", "--seconds", f"{seconds:g}"]
    try:
        settings = Settings.from_environment()
        options = JobOptions(
            argv=probe + (["--json"] if as_json else []),
            placed=place(2, [Host("localhost", 1), *parse_hosts(host)]),
            cwd=os.getcwd(),
            env={"SLIPSTREAM_TRANSPORT": "tcp"} | ({"SLIPSTREAM_LANES": str(lanes)} if lanes else {}),
            start_timeout=settings.start_timeout,
            interface=interface or settings.interface,
            prefix=False,
            ssh_command=ssh_command or settings.ssh_command,
        )
        return run_job(options)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.ClickException(str(error)) from None


def _show(finding: Finding) -> None:
    colour = {"ok": "green", "warn": "yellow", "fail": "red"}[finding.state]
    click.echo(f"{click.style(f'{finding.state:<5}', fg=colour)} {finding.name:<16} {finding.text}")
    if finding.cure:
        click.echo(f"{'':<22} -> {finding.cure}")


@main.command()
def version() -> None:
    """Prints the version."""
    click.echo(f"slipstream {installed_version()}")


bench.add_command(train)
main.add_command(bench)
main.add_command(lab)
main.add_command(plan)
main.add_command(reducer)
main.add_command(timeline)
main.add_command(top)
