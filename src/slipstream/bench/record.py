"""Records of measurements: plain values, which JSON holds. Each says when, and on which machine, it was made.

A file of a record is named ``DATE-KIND-MACHINE.json``.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.bench import machine

__all__ = ["Record", "head", "keep", "newest", "origin", "path_of", "write"]

Record = dict[str, Any]


def head(benchmark: str) -> Record:
    """The first fields of a record: which benchmark, the date, and the machine with its load before the run."""
    return {
        "benchmark": benchmark,
        "date": datetime.date.today().isoformat(),
        "machine": machine.describe(),
    }


def origin(record: Mapping[str, Any]) -> str:
    """The date and the machine of a record in words, and the versions that it names."""
    host = record["machine"]
    text = f"{record['date']}: {host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB, "
    text += f"Linux {host['kernel']}, load before the run {host['load_1min']}"
    versions = ", ".join(f"{name} {version}" for name, version in record.get("versions", {}).items())
    return f"{text}; {versions}" if versions else text


def write(record: Record | list[Record], target: str) -> None:
    """Writes JSON into the file ``target``, or to standard output for ``-``."""
    text = json.dumps(record, indent=1) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).write_text(text, encoding="utf-8")


def path_of(record: Mapping[str, Any], kind: str, folder: Path) -> Path:
    """Where `keep` writes a record."""
    return folder / f"{record['date']}-{kind}-{machine.host_class(record['machine'])}.json"


def keep(record: Record, kind: str, folder: Path) -> Path:
    """Writes the record into ``folder``, which is made if need be, under the name of its kind; returns the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(record, kind, folder)
    write(record, str(path))
    return path


def newest(kind: str, folder: Path) -> Record:
    """The newest record of a kind in ``folder``; FileNotFoundError if there is none."""
    found = sorted(folder.glob(f"20??-??-??-{kind}-*.json"))
    if not found:
        raise FileNotFoundError(f"no record of {kind} in {folder}")
    record: Record = json.loads(found[-1].read_text(encoding="utf-8"))
    return record
