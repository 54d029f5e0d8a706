"""The labs of this machine: a folder each, locked by the process that owns it. What lost its owner is swept."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from slipstream.lab.errors import LabError
from slipstream.lab.namespaces import Place, kill_all
from slipstream.lab.spec import Spec

__all__ = [
    "ROOT",
    "Record",
    "claim",
    "destroy",
    "find",
    "folder_of",
    "marker",
    "read",
    "records",
    "sweep",
    "write",
]

ROOT = Path("/run/slipstream/labs")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")


@dataclass(frozen=True)
class Record:
    """A lab as its folder knows it. ``keep``: it stays until it is taken down; else it ends with its owner.

    ``cut``: the cables that are out, as ``h2:1`` (host and interface).
    """

    name: str
    keep: bool
    spec: Spec
    hub: Place
    places: dict[str, Place]
    cut: tuple[str, ...] = ()

    def cut_interfaces(self, host: str) -> list[int]:
        """Which interfaces of a host have their cable out, from 1."""
        return [k for k in range(1, self.spec.interfaces + 1) if f"{host}:{k}" in self.cut]


def folder_of(name: str) -> Path:
    """Where a lab keeps its files; ValueError if that is no name for a lab."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r:.40} is not a name for a lab: lower-case letters, digits and -")
    return ROOT / name


def marker(name: str) -> str:
    """What stands in the mount table of the processes that live in a lab."""
    return f"{ROOT.relative_to('/run')}/{name}/hosts /etc/hosts "


def claim(name: str) -> int:
    """Makes the folder of a new lab and locks it: the lock's descriptor. LabError if the name is taken."""
    folder = folder_of(name)
    try:
        ROOT.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise LabError(
            f"there is a lab {name!r} already: slipstream lab down {name}, or choose another name"
        ) from None
    except OSError as error:
        raise LabError(f"cannot make {folder}: {error.strerror}") from None
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def write(record: Record) -> None:
    """Writes a lab's record, all of it or nothing."""
    folder = folder_of(record.name)
    part = folder / f"record.{os.getpid()}"
    part.write_text(json.dumps(asdict(record) | {"spec": record.spec.as_dict()}), encoding="utf-8")
    part.replace(folder / "record.json")


def read(name: str) -> Record:
    """The record of a lab; LabError if there is none."""
    try:
        data = json.loads((folder_of(name) / "record.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        there = ", ".join(record.name for record in records()) or "none (to make one: slipstream lab up)"
        raise LabError(f"there is no lab {name!r}; there is {there}") from None
    places = {host: Place(**place) for host, place in data["places"].items()}
    spec = Spec.from_dict(data["spec"])
    return Record(data["name"], data["keep"], spec, Place(**data["hub"]), places, tuple(data["cut"]))


def _names() -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(entry.name for entry in ROOT.iterdir() if _NAME.fullmatch(entry.name))
    return []


def records() -> list[Record]:
    """The labs that are up."""
    found = []
    for name in _names():
        with contextlib.suppress(LabError, OSError, ValueError, KeyError):
            if (ROOT / name / "record.json").exists():
                found.append(read(name))
    return [record for record in found if record.hub.alive()]


def find(name: str | None) -> Record:
    """The lab of that name; without one that of SLIPSTREAM_LAB, or the only one that is up. LabError if unclear.

    One that stays (`slipstream lab up`) comes before those that end with a command (`slipstream lab run`).
    """
    name = name or os.environ.get("SLIPSTREAM_LAB")
    if name is not None:
        return read(name)
    up = records()
    up = [record for record in up if record.keep] or up
    if len(up) != 1:
        text = (
            "no lab is up: slipstream lab up"
            if not up
            else f"say which: --name {' or '.join(r.name for r in up)}"
        )
        raise LabError(text)
    return up[0]


@contextmanager
def _lock(folder: Path) -> Iterator[bool]:
    """Whether the folder has lost its owner; it is ours inside then."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


def sweep() -> list[str]:
    """Takes down what earlier labs left whose owner was killed; returns their names."""
    swept = []
    for name in _names():
        with _lock(ROOT / name) as lost:
            if lost and not _stays(name):
                destroy(name)
                swept.append(name)
    return swept


def _stays(name: str) -> bool:
    try:
        record = read(name)
    except (LabError, ValueError, KeyError):
        return False  # its making was interrupted
    return record.keep and record.hub.alive() and all(place.alive() for place in record.places.values())


def destroy(name: str) -> None:
    """Ends all that lives in a lab, with its namespaces, and removes its folder."""
    kill_all(marker(name))
    shutil.rmtree(folder_of(name), ignore_errors=True)
