"""``slipstream reducer``: a node that sums what the workers of jobs send it."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slipstream.base.errors import SlipstreamError
from slipstream.base.files import raise_file_limit
from slipstream.base.settings import REDUCER_PORT, Settings
from slipstream.base.units import format_rate, parse_rate, parse_size
from slipstream.cli.options import Whole, time_option
from slipstream.comm.rendezvous.discovery import bind_addresses
from slipstream.comm.rendezvous.secret import read_secret, reducer_secret

if TYPE_CHECKING:
    from slipstream.reducer.server import Limits

__all__ = ["reducer"]

_LEAST_RATE = 10**7  # bits a second; what a job measures when it starts would take minutes
_SIGNALS = {signal.SIGTERM, signal.SIGINT}
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

_EPILOG = """\b
Examples:
  slipstream reducer --memory 8G --metrics-port 9400
  slipstream reducer --bind 10.0.0.9 --secret-file /etc/slipstream/reducer.secret
  slipstream run -np 8 -H node1:4,node2:4 --reducers cpu1,cpu2 -- python train.py
"""


class _Size(click.ParamType):  # type: ignore[type-arg]  # click 8.1 takes no type
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_size(value, rounded=True)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Rate(click.ParamType):  # type: ignore[type-arg]  # click 8.1 takes no type
    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            rate = value if isinstance(value, int) else parse_rate(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if rate < _LEAST_RATE:
            self.fail(f"{value} is less than {format_rate(_LEAST_RATE)}", param, ctx)
        return rate


@click.command(epilog=_EPILOG)
@click.option(
    "--bind",
    metavar="ADDRESS",
    help="Address to listen on. [default: that of SLIPSTREAM_INTERFACE, else all]",
)
@click.option(
    "--port",
    type=Whole(0, 65535),
    default=REDUCER_PORT,
    help=f"Port that jobs ask at; 0 means any. Each job gets a further one. [default: {REDUCER_PORT}]",
)
@click.option(
    "--memory",
    type=_Size(),
    help="Memory limit for all jobs together. [default: half of the machine's memory]",
)
@click.option(
    "--job-bandwidth",
    type=_Rate(),
    help="Rate limit for all workers of one job together, such as 2gbit. [default: no limit]",
)
@click.option(
    "--jobs",
    type=Whole(1, 1000),
    default=16,
    help="Number of jobs that it serves at the same time. [default: 16]",
)
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path),
    help="File of mode 0600 with what jobs must know: 32 or more hex digits. [default: SLIPSTREAM_REDUCER_SECRET "
    "or _FILE, the job's secret, the user's own]",
)
@click.option(
    "--metrics-port",
    type=Whole(0, 65535),
    help="Port for /healthz, /readyz and /metrics, without authentication.",
)
@click.option(
    "--metrics-bind",
    metavar="ADDRESS",
    default="127.0.0.1",
    help="Address for --metrics-port. [default: 127.0.0.1]",
)
@time_option("--drain-seconds", 30, "How long jobs may go on after SIGTERM or Ctrl-C", least=0, most=1e9)
@click.option("--json", "as_json", is_flag=True, help="Print and log lines of JSON.")
def reducer(
    bind: str | None,
    port: int,
    memory: int | None,
    job_bandwidth: int | None,
    jobs: int,
    secret_file: Path | None,
    metrics_port: int | None,
    metrics_bind: str,
    drain_seconds: float,
    as_json: bool,
) -> None:
    """Sums gradients for jobs, until it is told to end.

    Jobs find it by `slipstream run --reducers` or SLIPSTREAM_REDUCERS. SIGTERM or Ctrl-C: takes no more jobs, lets
    those there are go on for a while, and ends; their workers then do without. A second one ends it at once.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_signals_held())  # before anything starts a thread: NumPy does as it is imported
        from slipstream.reducer.metrics import serve_metrics  # these load the native core
        from slipstream.reducer.server import Limits, Reducer

        try:
            settings = Settings.from_environment()
            limits = Limits(
                memory=_half_of_memory() if memory is None else memory,
                jobs=jobs,
                bandwidth=(job_bandwidth or 0) / 8,
            )
            if limits.needed(2) > limits.memory:
                raise ValueError(f"--memory: a job of 2 workers may need {limits.needed(2) >> 20} MiB")
            for address in filter(None, (bind, metrics_bind)):
                ipaddress.ip_address(address)
            where = [bind] if bind else bind_addresses(settings.interface)
            secret = read_secret(secret_file, "--secret-file") if secret_file else reducer_secret(settings)
        except (ValueError, SlipstreamError) as error:
            raise click.ClickException(str(error)) from None
        raise_file_limit()
        try:
            service = Reducer(
                where,
                port,
                secret,
                limits,
                congestion=settings.congestion,
                dscp=settings.dscp,
                encrypt=settings.encrypt,
            )
            stack.callback(service.close)
            metrics = None
            if metrics_port is not None:
                metrics = stack.enter_context(serve_metrics(service, metrics_bind, metrics_port))
        except OSError as error:
            raise click.ClickException(str(error)) from None
        _log_to_stderr(as_json)
        _announce(service.address, limits, metrics, as_json)
        _drain(service, signal.sigwait(_SIGNALS), drain_seconds)


@contextmanager
def _signals_held() -> Iterator[None]:
    """All threads that start meanwhile leave the signals to this one, which waits for them."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def _half_of_memory() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            total = min(total, int(Path(path).read_text(encoding="ascii")))
    return total // 2


def _announce(
    address: tuple[str, int], limits: Limits, metrics: tuple[str, int] | None, as_json: bool
) -> None:
    (host, port), memory, jobs = address, limits.memory, limits.jobs
    if as_json:
        found = {"event": "listening", "address": host, "port": port, "memory": memory, "jobs": jobs}
        click.echo(json.dumps(found | ({"metrics_port": metrics[1]} if metrics else {})))
    else:
        text = f"reducer listens on {_joined(host, port)}: at most {jobs} jobs, {memory >> 20} MiB"
        if limits.bandwidth:
            text += f", {format_rate(8 * limits.bandwidth)} from each job"
        click.echo(text + (f"; metrics on {_joined(*metrics)}" if metrics else ""))


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _drain(service: Any, number: int, seconds: float) -> None:
    """Lets the jobs end; a further signal ends the process at once."""
    log = logging.getLogger("slipstream.reducer")
    log.info(
        "%s: accepts no more jobs, and waits %g s for the jobs that it has",
        signal.Signals(number).name,
        seconds,
    )
    drainer = threading.Thread(target=service.drain, args=(seconds,), name="slipstream-drain", daemon=True)
    drainer.start()
    while drainer.is_alive():
        again = signal.sigtimedwait(_SIGNALS, 0.05)
        if again is not None:
            os._exit(128 + again.si_signo)
    log.info("ended")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        return json.dumps({"time": when, "level": record.levelname.lower(), "message": text})


def _log_to_stderr(as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonLines() if as_json else logging.Formatter("%(asctime)s %(levelname)s: %(message)s")
    )
    log = logging.getLogger("slipstream")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
