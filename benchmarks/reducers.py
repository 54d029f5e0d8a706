"""What reducers give: labs on this machine with the links that the formula is about; needs root, iproute2, PyTorch.

    python benchmarks/reducers.py                      # all of it: half an hour, most of it training
    python benchmarks/reducers.py --only four          # 4 workers at 500 Mbit/s beside 1 to 4 reducers, ring, gloo
    python benchmarks/reducers.py --only eight         # 8 workers beside 8
    python benchmarks/reducers.py --only two_hosts     # 2 workers of 2 ranks beside 2: hierarchy, shards
    python benchmarks/reducers.py --only four_hosts    # 4 workers of 2 ranks beside 4
    python benchmarks/reducers.py --only slow          # one of 4 reducers has a link of 100 Mbit/s
    python benchmarks/reducers.py --only small         # 4 KiB on 8 workers beside 1 and 8
    python benchmarks/reducers.py --only sums          # kernels, memcpy, CPU time of whole reducers
    python benchmarks/reducers.py --only train         # steps of VGG-16 and BERT-base, and what they cost
    python benchmarks/reducers.py --only four --quick  # two repeats: whether it works, not how fast
    python benchmarks/reducers.py --save               # keep the records, and renew docs/reducers.md

All contenders of a lab take turns in the same processes, and every call is checked. Prints what reducers_report.py
makes of the records. Ends with code 1 if a value was wrong, 2 if a job failed, with ``--strict`` 3 if a target was
missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import reducers_report as report

from slipstream import _core
from slipstream.base.dtypes import DType, Op
from slipstream.bench.page import renew
from slipstream.bench.record import head, keep, origin, path_of, write
from slipstream.bench.shell import SLIPSTREAM, WrongResult, bench_record
from slipstream.bench.table import size_text, time_text
from slipstream.lab import Lab

_HERE = Path(__file__).resolve().parent
_RANK = _HERE / "reducers_rank.py"
_DOCUMENT = _HERE.parent / "docs" / "reducers.md"
_RATE, _SLOW = 500_000_000, 100_000_000
_MIB = 1 << 20
_LIMIT = 1800.0  # seconds of a job
_STEPS = 2  # of a turn: the first finds connections that were idle
_MODELS = ("vgg16", "bert-base")

Record = dict[str, Any]


@dataclass(frozen=True)
class Reducer:
    """One that runs on the lab's host ``host``, asked at ``port``; ``metrics_port`` is open on that host alone."""

    host: str
    port: int
    metrics_port: int
    pid: int


def say(text: str) -> None:
    """Progress, beside the results."""
    print(text, file=sys.stderr, flush=True)


# ---- reducers and ranks in a lab ----


@contextmanager
def started(lab: Lab, secret: str) -> Iterator[list[Reducer]]:
    """A reducer on every host of the lab that is marked so, until the end of the block."""
    command = [
        *SLIPSTREAM,
        "reducer",
        "--port",
        "0",
        "--metrics-port",
        "0",
        "--drain-seconds",
        "0",
        "--json",
    ]
    with contextlib.ExitStack() as stack:
        processes = []
        for host in [host.name for host in lab.spec.hosts if host.reducer]:
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = lab.popen(
                host,
                command,
                env={"SLIPSTREAM_REDUCER_SECRET": secret},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            processes.append((host, process, log))
        yield [_listening(*one) for one in processes]


def _listening(host: str, process: subprocess.Popen[str], log: Any) -> Reducer:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        log.seek(0)
        raise RuntimeError(f"the reducer on {host} did not start: {log.read()[-2000:]}")
    found = json.loads(line)
    return Reducer(host, found["port"], found["metrics_port"], process.pid)


def run_ranks(
    lab: Lab,
    reducers: Sequence[Reducer],
    secret: str,
    *,
    workers: int,
    local: int = 1,
    sizes: Sequence[int],
    contenders: Sequence[str],
    repeats: int,
) -> list[Record]:
    """What reducers_rank.py finds, size by size; ``local`` ranks a worker. Raises WrongResult, CalledProcessError."""
    task = {
        "reducers": [f"{one.host}:{one.port}" for one in reducers],
        "contenders": list(contenders),
        "sizes": list(sizes),
        "repeats": repeats,
        "warmup": 1,
    }
    rank = [sys.executable, str(_RANK), json.dumps(task)]
    run = [*SLIPSTREAM, "run", "-np", str(workers * local), "--no-prefix"]
    if local == 1:
        run += ["-e", "SLIPSTREAM_TRANSPORT=tcp"]
    else:
        run += ["-H", ",".join(f"{host}:{local}" for host in lab.hosts[:workers])]
    run += ["-e", f"SLIPSTREAM_REDUCER_SECRET={secret}", "--", *rank]
    found = []
    with lab.popen("h1", ["timeout", f"{_LIMIT:g}", *run], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                size = json.loads(line)
            except ValueError:
                say(line.rstrip())
                continue
            found.append(size)
            _check(size)
    if process.returncode or len(found) < len(sizes):
        raise subprocess.CalledProcessError(process.returncode or 1, run[:6])
    return found


def _check(size: Record) -> None:
    for name, row in size["contenders"].items():
        median = sorted(row["samples"])[len(row["samples"]) // 2]
        text = f"  {size_text(size['bytes'])}, {name}: {time_text(median)}"
        unused = row.get("unused", ())
        say(text + (f"; WITHOUT {', '.join(unused)}" if unused else ""))
        if row["wrong"]:
            raise WrongResult(f"{name}, {size['bytes']} bytes: {row['wrong']} wrong elements")


def _lab(
    workers: int,
    reducers: int,
    sizes: Sequence[int],
    contenders: Sequence[str],
    repeats: int,
    slow: int = 0,
    rate: int = _RATE,
    local: int = 1,
) -> Record:
    """Measures in a lab of links of ``rate``, the last ``slow`` reducers at 100 Mbit/s, ``local`` ranks a worker."""
    rates = [_SLOW if number >= reducers - slow else rate for number in range(reducers)]
    secret = secrets.token_hex(32)
    with (
        Lab(workers, reducers=[{"rate": one} for one in rates], rate=rate) as lab,
        started(lab, secret) as running,
    ):
        before = _processor_ticks()
        found = run_ranks(
            lab,
            running,
            secret,
            workers=workers,
            local=local,
            sizes=sizes,
            contenders=contenders,
            repeats=repeats,
        )
        idle, ticks = (after - earlier for after, earlier in zip(_processor_ticks(), before, strict=True))
    record = {"workers": workers, "rate": rate, "reducer_rates": rates, "sizes": found}
    return record | {"local": local, "idle": idle / ticks}


def _processor_ticks() -> tuple[int, int]:
    """Of all this machine's cores: ticks without work, and all ticks."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


# ---- the parts ----


def four(repeats: int, _: argparse.Namespace) -> Record:
    """16 to 64 MiB among 4 workers, beside 1 to 4 reducers."""
    contenders = [*(f"reducers-{number}" for number in (4, 3, 2, 1)), "ring", "gloo"]
    return _lab(4, 4, [16 * _MIB, 32 * _MIB, 64 * _MIB], contenders, repeats)


def eight(repeats: int, _: argparse.Namespace) -> Record:
    """16 and 64 MiB among 8 workers, beside 8 reducers, and beside one."""
    return _lab(8, 8, [16 * _MIB, 64 * _MIB], ["reducers-8", "reducers-1", "ring", "gloo"], repeats)


def eight_slower(repeats: int, _: argparse.Namespace) -> Record:
    """16 and 64 MiB among 8 workers, beside 8 reducers, at 250 Mbit/s: two cores can do the work of 16 hosts then."""
    return _lab(8, 8, [16 * _MIB, 64 * _MIB], ["reducers-8", "ring", "gloo"], repeats, rate=_RATE // 2)


def two_hosts(repeats: int, _: argparse.Namespace) -> Record:
    """16 and 64 MiB among 2 workers of 2 ranks, beside 2 reducers, by the hierarchy, and by a flat ring."""
    return _lab(2, 2, [16 * _MIB, 64 * _MIB], ["reducers-2", "choice", "ring", "gloo"], repeats, local=2)


def four_hosts(repeats: int, _: argparse.Namespace) -> Record:
    """16 and 64 MiB among 4 workers of 2 ranks, beside 4 reducers."""
    return _lab(4, 4, [16 * _MIB, 64 * _MIB], ["reducers-4", "choice", "ring", "gloo"], repeats, local=2)


def slow(repeats: int, _: argparse.Namespace) -> Record:
    """4 workers beside 3 reducers, and beside a fourth that is slow."""
    return _lab(4, 4, [64 * _MIB], ["reducers-4", "reducers-3", "ring"], repeats, slow=1)


def small(repeats: int, _: argparse.Namespace) -> Record:
    """4 KiB among 8 workers."""
    return _lab(
        8,
        8,
        [4 << 10],
        ["reducers-8", "reducers-1", "through-8", "through-1", "ring", "choice", "gloo"],
        3 * repeats,
    )


def sums(repeats: int, _: argparse.Namespace) -> Record:
    """Kernels and memcpy on one core; then whole reducers, in a lab at 500 Mbit/s and in one as fast as the machine."""
    kernels = [kernel_rates(nbytes, 4, 2 * repeats) for nbytes in (256 << 10, 64 * _MIB)]
    processes = []
    for what, count, rate in (("4 at 500 Mbit/s", 4, _RATE), ("1 as fast as the machine", 1, None)):
        spent = _cpu_per_gb(count, rate, repeats)
        processes.append({"what": what, "cpu_per_gb": spent})
    return {"kernels": kernels, "processes": processes}


def kernel_rates(nbytes: int, inputs: int, repeats: int) -> Record:
    """Bytes a second that a core sums, as a reducer does (the first two, then one by one), and that it copies.

    Of each sum all inputs count; ``nbytes`` is the size of one.
    """
    arrays = [np.full(nbytes // 4, number + 1, np.float32) for number in range(inputs)]
    out = np.empty_like(arrays[0])
    first, second, *rest = (array.ctypes.data for array in arrays)
    target, count, dtype, op = out.ctypes.data, out.size, int(DType.F32), int(Op.SUM)

    def add() -> None:
        _core.reduce(dtype, op, target, first, second, count)
        for other in rest:
            _core.reduce(dtype, op, target, target, other, count)

    calls = max(1, 256 * _MIB // (inputs * nbytes))
    found: dict[str, list[float]] = {"sum": [], "copy": []}
    for repeat in range(-1, repeats):  # the first one warms up
        for name, act, each in (
            ("sum", add, inputs * nbytes),
            ("copy", lambda: np.copyto(out, arrays[0]), nbytes),
        ):
            start = time.perf_counter()
            for _ in range(calls):
                act()
            seconds = time.perf_counter() - start
            if repeat >= 0:
                found[name].append(calls * each / seconds)
        add()
        if not (out == inputs * (inputs + 1) / 2).all():
            raise WrongResult(f"the sum of {inputs} inputs of {nbytes} bytes")
    return {"bytes": nbytes, "inputs": inputs, **found}


def _cpu_per_gb(count: int, rate: int | None, repeats: int) -> list[float]:
    """CPU seconds of ``count`` reducers for each GB that 4 workers sent them, a job a sample."""
    secret = secrets.token_hex(32)
    found = []
    with Lab(4, reducers=count, rate=rate) as lab, started(lab, secret) as running:
        for _ in range(repeats):
            cpu, received = _cpu_seconds(running), _received(lab, running)
            run_ranks(
                lab,
                running,
                secret,
                workers=4,
                sizes=[32 * _MIB],
                contenders=[f"reducers-{count}"],
                repeats=8,
            )
            received = _received(lab, running) - received  # the job has ended there too
            found.append((_cpu_seconds(running) - cpu) / (received / 1e9))
            say(f"  {received / 1e9:.2f} GB in, {found[-1]:.2f} CPU seconds a GB")
    return found


def _cpu_seconds(reducers: Sequence[Reducer]) -> float:
    """User and system time of the processes so far, all their threads included."""
    ticks = 0
    for one in reducers:
        fields = Path(f"/proc/{one.pid}/stat").read_text().rpartition(") ")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


_METRICS = """
import sys, urllib.request
text = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics", timeout=10).read().decode()
found = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
print(found["slipstream_reducer_jobs"], found["slipstream_reducer_received_bytes_total"])
"""


def _received(lab: Lab, reducers: Sequence[Reducer]) -> float:
    """Bytes that the reducers got in all, once they have no job."""
    total = 0.0
    for one in reducers:
        end = time.monotonic() + 60
        while True:
            ask = [sys.executable, "-c", _METRICS, str(one.metrics_port)]
            jobs, received = lab.run(one.host, ask, stdout=subprocess.PIPE, text=True).stdout.split()
            if jobs == "0":
                break
            if time.monotonic() > end:
                raise RuntimeError(f"the reducer on {one.host} still has a job a minute after its end")
            time.sleep(0.2)
        total += float(received)
    return total


def train(repeats: int, given: argparse.Namespace) -> Record:
    """A step of each model beside 4 reducers, over our ring and over gloo: `slipstream bench train`."""
    records = {}
    for model in given.models.split(","):
        bench = ["train", "-np", "4", "--model", model, "--reducers", "auto", "--limit", f"{_LIMIT:g}"]
        turns = -(-repeats // _STEPS)  # half a gigabyte a step: few of them, and none too few
        bench += ["--against", "slipstream-ring,gloo", "--repeats", str(turns), "--steps", str(_STEPS)]
        bench += ["--worker-price", str(given.worker_price), "--reducer-price", str(given.reducer_price)]
        say(
            f"  {model}: {turns} turns of {_STEPS} steps; a large model takes two minutes each, and three to start"
        )
        lab = ["--hosts", "4", "--reducers", "4", "--rate", "500mbit"]
        records[model] = bench_record(bench, lab, stdout=sys.stderr)
    return records


# ---- the command ----

Part = Callable[[int, argparse.Namespace], Record]
_PARTS: dict[str, Part] = {
    "four": four,
    "eight": eight,
    "eight_slower": eight_slower,
    "two_hosts": two_hosts,
    "four_hosts": four_hosts,
    "slow": slow,
    "small": small,
    "sums": sums,
    "train": train,
}


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=_PARTS, help="this part; may be given again")
    parser.add_argument("--repeats", type=int, default=5, help="of each contender (5)")
    parser.add_argument("--quick", action="store_true", help="two repeats: whether it works")
    parser.add_argument("--models", default=",".join(_MODELS), help=f"to train ({','.join(_MODELS)})")
    parser.add_argument("--worker-price", type=float, default=30.0, help="of a worker, an hour (30)")
    parser.add_argument("--reducer-price", type=float, default=0.7, help="of a reducer, an hour (0.7)")
    parser.add_argument("--json", metavar="FILE", help="write all samples there; - for standard output")
    parser.add_argument("--save", action="store_true", help="keep the records, renew docs/reducers.md")
    parser.add_argument("--strict", action="store_true", help="end with code 3 if a target was missed")
    given = parser.parse_args(arguments)
    if given.save and given.quick:
        parser.error("--quick says nothing that is worth keeping: leave out --save")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts that were asked for; returns the exit code."""
    given = _arguments(arguments)
    about = head("reducers")
    records: Record = {}
    failed = False
    for name in given.only or _PARTS:
        say(f"{name}: {_PARTS[name].__doc__}")
        try:
            records[name] = _PARTS[name](2 if given.quick else given.repeats, given)
        except WrongResult as error:
            print(f"WRONG RESULT: {name}: {error}; nothing is kept", file=sys.stderr)
            return 1
        except (RuntimeError, subprocess.CalledProcessError) as error:  # the other parts are no worse for it
            print(f"reducers: {name}: {error}", file=sys.stderr)
            failed = True
    print(report.page(records), file=sys.stderr if given.json == "-" else sys.stdout)
    if given.json:
        write(about | records, given.json)
    if given.save and records:
        _save(about | records)
    if failed:
        return 2
    return 3 if given.strict and not all(judgement.met for judgement in report.judge(records)) else 0


def _save(record: Record) -> None:
    """Keeps the record, with the other parts of the same day, and renews the page."""
    folder = _HERE / "results"
    path = path_of(record, "reducers", folder)
    kept = json.loads(path.read_text()) if path.exists() else {}
    keep(kept | record, "reducers", folder)
    renew(_DOCUMENT, "reducers", page(kept | record))


def page(record: Record) -> str:
    """What docs/reducers.md says of a record."""
    return f"{origin(record)}.\n\n{report.page(record)}"


if __name__ == "__main__":
    sys.exit(main())
