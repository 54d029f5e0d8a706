"""The labs of this machine: a folder each, locked by the process that owns it. What lost its owner is swept."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from slipstream.lab.errors import LabError
from slipstream.lab.namespaces import ProcessIdentity, kill_all
from slipstream.lab.spec import Spec

__all__ = [
    "ROOT",
    "LabRecord",
    "claim",
    "destroy",
    "find",
    "find_kept",
    "folder_of",
    "marker",
    "read",
    "records",
    "sweep",
    "write",
]

ROOT = Path("/run/slipstream/labs")
_CHILD_SECONDS = 2.0  # from fork to exec
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")


@dataclass(frozen=True)
class LabRecord:
    """A lab as its folder knows it. ``keep``: it stays until it is taken down; else it ends with its owner.

    ``cut``: the cables that are out, as ``h2:1`` (host and interface).
    """

    name: str
    keep: bool
    spec: Spec
    hub: ProcessIdentity
    holders: dict[str, ProcessIdentity]
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
        with _alone():
            folder.mkdir(mode=0o700)
            descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, json.dumps(asdict(ProcessIdentity.own())).encode())
    except FileExistsError:
        raise LabError(
            f"there is a lab {name!r} already: slipstream lab down {name}, or choose another name"
        ) from None
    except OSError as error:
        raise LabError(f"cannot make {folder}: {error.strerror}") from None
    return descriptor


@contextmanager
def _alone() -> Iterator[None]:
    """One process at a time makes a folder with its lock, or looks for folders whose lock nobody holds."""
    descriptor = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write(record: LabRecord) -> None:
    """Writes a lab's record, all of it or nothing."""
    folder = folder_of(record.name)
    part = folder / f"record.{os.getpid()}"
    part.write_text(json.dumps(asdict(record) | {"spec": record.spec.as_dict()}), encoding="utf-8")
    part.replace(folder / "record.json")


def read(name: str) -> LabRecord:
    """The record of a lab; LabError if there is none."""
    try:
        data = json.loads((folder_of(name) / "record.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        there = ", ".join(record.name for record in records()) or "none (to make one: slipstream lab up)"
        raise LabError(f"there is no lab {name!r}; there is {there}") from None
    holders = {host: ProcessIdentity(**holder) for host, holder in data["holders"].items()}
    spec = Spec.from_dict(data["spec"])
    return LabRecord(
        data["name"], data["keep"], spec, ProcessIdentity(**data["hub"]), holders, tuple(data["cut"])
    )


def _names() -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(entry.name for entry in ROOT.iterdir() if _NAME.fullmatch(entry.name))
    return []


def records() -> list[LabRecord]:
    """The labs that are up."""
    found = []
    for name in _names():
        with contextlib.suppress(LabError, OSError, ValueError, KeyError):
            if (ROOT / name / "record.json").exists():
                found.append(read(name))
    return [record for record in found if record.hub.alive()]


def find_kept(name: str | None) -> LabRecord:
    """The lab of that name; without one the one that `slipstream lab up` made. LabError if unclear.

    A lab that ends with a command (`slipstream lab run`) belongs to that command: only its name takes it down.
    """
    if name is not None:
        return read(name)
    inside = os.environ.get("SLIPSTREAM_LAB")
    up = [read(inside)] if inside is not None else records()
    kept = [record for record in up if record.keep]
    if len(kept) == 1:
        return kept[0]
    if not up:
        raise LabError("no lab is up")
    text = f"say which: slipstream lab down {' or '.join(record.name for record in kept or up)}"
    raise LabError(
        text if kept else f"no lab of `slipstream lab up` is up, only one of `slipstream lab run`; {text}"
    )


def find(name: str | None) -> LabRecord:
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
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        # Without a lock its owner ended while it made the folder, or removes the folder now.
        yield isinstance(error, FileNotFoundError)
        return
    try:
        yield _locked(descriptor)
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Locks it, unless a live process has. A child that a dead owner had just started holds the lock until it execs."""
    deadline = time.monotonic() + _CHILD_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if _owner_lives(descriptor) or time.monotonic() > deadline:
                return False
        time.sleep(0.01)


def _owner_lives(descriptor: int) -> bool:
    try:
        return ProcessIdentity(**json.loads(os.pread(descriptor, 256, 0))).alive()
    except (OSError, ValueError, TypeError):
        return True  # it has not written itself yet


def sweep() -> list[str]:
    """Takes down what earlier labs left whose owner was killed; returns their names."""
    swept: list[str] = []
    if not ROOT.exists():
        return swept
    with _alone():
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
    return record.keep and record.hub.alive() and all(holder.alive() for holder in record.holders.values())


def destroy(name: str) -> None:
    """Ends all that lives in a lab, with its namespaces, and removes its folder."""
    kill_all(marker(name))
    shutil.rmtree(folder_of(name), ignore_errors=True)
