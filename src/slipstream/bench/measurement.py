"""Measures one collective: starts the ranks, makes a record of what they report, and keeps it."""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.base.settings import Settings
from slipstream.bench import contenders, jobs, machine
from slipstream.bench.collectives import COLLECTIVES, DTYPES, check_operation, shapes
from slipstream.bench.jobs import Placement
from slipstream.bench.summary import memory_rates, summarise_size
from slipstream.bench.task import Task

__all__ = ["Options", "file_name", "measure", "save", "wrong_results"]

Record = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """What to measure, where, against whom. Sizes in bytes, times in seconds, ``link_rate`` in bits a second."""

    collective: str
    placement: Placement
    sizes: Sequence[int]
    against: Sequence[str] = ("gloo",)
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    repeats: int = 15
    warmup: int = 2
    transport: str = "auto"
    lanes: int | None = None
    encrypt: bool = False
    link_rate: float | None = None
    limit: float = 1800.0
    idle_seconds: float = 0.0
    inject_error: bool = False


def measure(options: Options, show: Callable[[Record, Record | None], object] = lambda *_: None) -> Record:
    """Runs the measurement and returns its record.

    ``show(record, None)`` is called once the ranks run, ``show(record, size)`` with each size as it is measured.
    Raises ValueError for options that cannot work, `slipstream.bench.jobs.JobFailed` when the ranks fail.
    """
    names = _names(options)
    missing = contenders.missing(names)
    present = tuple(name for name in names if name not in missing)
    task = _task(options, present)
    record = _head(options, names, missing)
    messages = jobs.run(
        "slipstream.bench.rank",
        [task.to_json()],
        options.placement,
        mpi="mpi" in present or ("horovod" in present and shutil.which("mpirun") is not None),
        limit=options.limit,
        environment=_environment(options),
    )
    with contextlib.closing(messages):  # whatever happens here ends the ranks
        for message in messages:
            if message["kind"] == "start":
                _add_start(record, message)
                show(record, None)
            elif message["kind"] == "size":
                record["sizes"].append(summarise_size(message, record))
                show(record, record["sizes"][-1])
    if len(record["sizes"]) < len(task.shapes):
        raise jobs.JobFailed("the ranks ended before they had measured all sizes")
    return record


def _environment(options: Options) -> dict[str, str]:
    """The same for all ranks and contenders: one thread to compute, no talk about names of hosts."""
    environment = {"OMP_NUM_THREADS": "1", "SLIPSTREAM_TRANSPORT": options.transport}
    environment["TORCH_CPP_LOG_LEVEL"] = os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")
    if options.lanes is not None:
        environment["SLIPSTREAM_LANES"] = str(options.lanes)
    if options.encrypt:
        environment["SLIPSTREAM_ENCRYPT"] = "1"
    return environment


def _names(options: Options) -> list[str]:
    unknown = sorted(set(options.against) - set(contenders.TABLE))
    if unknown:
        known = ", ".join(name for name in contenders.TABLE if name != "slipstream")
        raise ValueError(f"--against {','.join(unknown)}: not known; there are {known}")
    return list(dict.fromkeys(["slipstream", *options.against]))


def _task(options: Options, names: tuple[str, ...]) -> Task:
    collective, ranks = COLLECTIVES[options.collective], options.placement.count
    if ranks < 2:
        raise ValueError("-np 1: a collective needs two ranks at least")
    if not 0 <= options.root < ranks:
        raise ValueError(f"--root {options.root}: the ranks are 0 to {ranks - 1}")
    if options.repeats < 1 or options.warmup < 0:
        raise ValueError("--repeats is at least 1, --warmup at least 0")
    if options.dtype == "bfloat16" and importlib.util.find_spec("ml_dtypes") is None:
        raise ValueError("--dtype bfloat16 needs ml_dtypes: pip install ml_dtypes")
    check_operation(options.op, options.dtype)
    options.placement.per_host()  # whether they fit
    return Task(
        collective=collective.name,
        shapes=tuple(shapes(collective, options.sizes, DTYPES[options.dtype], ranks)),
        dtype=options.dtype,
        op=options.op,
        root=options.root,
        contenders=names,
        repeats=options.repeats,
        warmup=options.warmup,
        idle_seconds=options.idle_seconds,
        inject_error=options.inject_error,
    )


def _head(options: Options, names: list[str], missing: Mapping[str, str]) -> Record:
    collective, settings = COLLECTIVES[options.collective], Settings.from_environment()
    return {
        "benchmark": "collective",
        "collective": collective.name,
        "date": datetime.date.today().isoformat(),
        "ranks": options.placement.count,
        "dtype": options.dtype,
        "op": options.op if collective.reduces else None,
        "root": options.root if collective.rooted else None,
        "in_place": collective.in_place,
        "repeats": options.repeats,
        "warmup": options.warmup,
        "transport": options.transport,
        "lanes": options.lanes,
        "link_rate": options.link_rate,
        "lab": settings.lab,
        "machine": machine.describe(),  # the load before ours
        "contenders": names,
        "missing": dict(missing),
        "sizes": [],
    }


def _add_start(record: Record, message: Mapping[str, Any]) -> None:
    """What only the ranks know: where they are, what they could load, how fast their memory is."""
    memory = [one["memory"] for one in message["ranks"]]
    idle = [one["idle_cpu"] for one in message["ranks"]]
    record["hosts"] = message["hosts"]
    record["encrypted"] = message["encrypted"]
    record["versions"] = message["versions"]
    record["missing"] |= message["missing"]
    there = [name for name in record["contenders"] if name not in record["missing"]]
    record["contenders"] = there
    record["peers"] = [name for name in there if not name.startswith("slipstream")]
    record["memories"] = {
        name: contenders.TABLE[name].memory for name in there if contenders.TABLE[name].memory
    }
    record["memory"] = None if None in memory else memory_rates(memory)
    record["idle_cpu"] = None if None in idle else max(idle)


def wrong_results(record: Mapping[str, Any]) -> list[str]:
    """Every contender that was wrong, by size, in words; empty when all results were right."""
    return [
        f"{name}, {size['bytes']} B: {row['wrong']} wrong elements over all ranks and repeats ({row['first_wrong']})"
        for size in record["sizes"]
        for name, row in size["contenders"].items()
        if row.get("wrong")
    ]


def file_name(record: Mapping[str, Any]) -> str:
    """``DATE-COLLECTIVE-npN[-lab][-TRANSPORT]-MACHINE.json``."""
    parts = [record["date"], record["collective"], f"np{record['ranks']}"]
    if record["lab"]:
        parts.append("lab")
    if record["transport"] == "tcp" and len(set(record["hosts"])) == 1:
        parts.append("tcp")
    return "-".join([*parts, machine.host_class(record["machine"])]) + ".json"


def save(record: Mapping[str, Any], folder: Path) -> Path:
    """Writes the record into ``folder`` (made if need be) under its name; ValueError if results were wrong."""
    if wrong_results(record):
        raise ValueError("wrong results are not saved")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(record)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path
