"""Measures one collective: starts the ranks, makes a record of what they report, and keeps it."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.base.settings import Settings
from slipstream.bench.collective import contenders
from slipstream.bench.collective.catalogue import COLLECTIVES, DTYPES, check_operation, shapes
from slipstream.bench.collective.summary import FASTEST, memory_rates, summarise_size
from slipstream.bench.collective.task import Task
from slipstream.bench.jobs import JobFailed, Placement
from slipstream.bench.measurement import follow, link_environment
from slipstream.bench.record import Record, head, keep
from slipstream.plan.registry import algorithms, collectives

__all__ = ["Options", "kind_name", "measure", "save", "wrong_results"]


@dataclass(frozen=True)
class Options:
    """What to measure, where, against whom. Sizes in bytes, times in seconds, ``link_rate`` in bits a second."""

    collective: str
    placement: Placement
    sizes: Sequence[int]
    against: Sequence[str] = ("gloo",)
    algorithms: Sequence[str] = ()
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


def measure(options: Options, show: Callable[[Record], object] = lambda _: None) -> Record:
    """Runs the measurement and returns its record.

    ``show(record)`` is called once the ranks run, and again after each size.
    Raises ValueError for options that cannot work, `slipstream.bench.jobs.JobFailed` when the ranks fail.
    """
    names = _names(options)
    missing = contenders.missing(names)
    present = tuple(name for name in names if name not in missing)
    task = _task(options, present)
    record = _begin(options, names, missing)
    mpi = "mpi" in present or ("horovod" in present and shutil.which("mpirun") is not None)
    environment = link_environment(lanes=options.lanes, encrypt=options.encrypt)
    environment["SLIPSTREAM_TRANSPORT"] = options.transport
    with follow(
        "slipstream.bench.collective.rank",
        task.to_json(),
        options.placement,
        mpi=mpi,
        limit=options.limit,
        environment=environment,
    ) as messages:
        for message in messages:
            if message["kind"] == "start":
                _add_start(record, message)
            elif message["kind"] == "size":
                record["sizes"].append(summarise_size(message, record))
            show(record)
    if len(record["sizes"]) < len(task.shapes):
        raise JobFailed("the ranks ended before they had measured all sizes")
    return record


def _names(options: Options) -> list[str]:
    unknown = sorted(set(options.against) - set(contenders.TABLE))
    if unknown:
        known = ", ".join(name for name in contenders.TABLE if name != "slipstream")
        raise ValueError(f"--against {','.join(unknown)}: not known; there are {known}")
    algorithms = [f"{contenders.ALGORITHM}{name}" for name in _algorithms(options)]
    return list(dict.fromkeys(["slipstream", *algorithms, *options.against]))


def _algorithms(options: Options) -> list[str]:
    """Those of ``options.algorithms``, ``all`` for every one there is; ValueError for another name."""
    if not options.algorithms:
        return []
    known = algorithms(options.collective) if options.collective in collectives() else ()
    if list(options.algorithms) == ["all"]:
        return list(known)
    unknown = sorted(set(options.algorithms) - set(known))
    if unknown:
        there = f"there are {', '.join(known)}" if known else "it has no choice of them"
        raise ValueError(f"--algorithm {','.join(unknown)}: not known for {options.collective}; {there}")
    return list(options.algorithms)


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


def _begin(options: Options, names: list[str], missing: Mapping[str, str]) -> Record:
    collective, settings = COLLECTIVES[options.collective], Settings.from_environment()
    return {
        **head("collective"),
        "collective": collective.name,
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
    if any(name.startswith(contenders.ALGORITHM) for name in there):
        record["peers"].append(FASTEST)
    record["memories"] = {
        name: contenders.need_of(name).memory for name in there if contenders.need_of(name).memory
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


def kind_name(record: Mapping[str, Any]) -> str:
    """What distinguishes the file of a record from others: ``COLLECTIVE-npN[-lab][-TRANSPORT]``."""
    parts = [record["collective"], f"np{record['ranks']}"]
    if record["lab"]:
        parts.append("lab")
    if record["transport"] == "tcp" and len(set(record["hosts"])) == 1:
        parts.append("tcp")
    return "-".join(parts)


def save(record: Record, folder: Path) -> Path:
    """Writes the record into ``folder`` (made if need be) under its name; ValueError if results were wrong."""
    if wrong_results(record):
        raise ValueError("wrong results are not saved")
    return keep(record, kind_name(record), folder)
