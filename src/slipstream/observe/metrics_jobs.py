"""How `slipstream top` finds the jobs of its user: each host's first rank leaves a file in a directory of the user's.

The file says where the ranks answer, and has the key that proves that one may ask. It has mode 0600, the directory
0700. It goes when the rank leaves; one whose process is gone without that is removed by whoever finds it. Containers
may share the directory and not the numbers of processes: entries of other ones are not looked at, and stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from slipstream.base.errors import Refused
from slipstream.base.files import kernel_text
from slipstream.base.log import Log
from slipstream.comm.membership.job import Job
from slipstream.comm.membership.meeting import MeetingPlace
from slipstream.comm.rendezvous.secret import private_directory, write_private
from slipstream.observe.metrics_exchange import key_of, name_of

__all__ = ["Entry", "announce", "directory", "found_jobs"]

_MOST_BYTES = 4 << 20  # of a file

_log = Log("slipstream")


@dataclass(frozen=True)
class Entry:
    """A job that runs. ``start``: of the process that wrote it, in clock ticks since the machine started.

    ``processes``: where ``pid`` and ``start`` mean something (`_processes`).
    """

    job: str
    host: str
    rank: int
    pid: int
    start: int
    processes: str
    began: float  # Unix time
    command: str
    name: str  # under which ranks are asked
    key: str  # hexadecimal digits
    encrypt: bool
    addresses: tuple[tuple[tuple[str, ...], int], ...]  # of each rank

    def places(self) -> list[MeetingPlace]:
        """Where the ranks answer."""
        return [MeetingPlace(tuple(addresses), port) for addresses, port in self.addresses]


def directory() -> Path:
    """Where this user's jobs are. Raises Refused if it cannot be trusted, OSError if there is none."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK | os.X_OK):
        return private_directory(Path(runtime) / "slipstream")
    return private_directory(Path("/tmp") / f"slipstream-{os.geteuid()}")


def _processes() -> str:
    """The start of the machine, and the namespace in which this process has its number."""
    return f"{kernel_text('/proc/sys/kernel/random/boot_id')} {os.readlink('/proc/self/ns/pid')}"


def _started(pid: int) -> int:
    """When a process started; 0 if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def _command() -> str:
    words = Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0")
    return " ".join(words).strip()[:200]


def announce(job: Job) -> Path | None:
    """Writes the file of ``job`` if this rank is the first of its host; None if there is none. Never raises."""
    if job.questions is None or job.membership.local_rank != 0:
        return None
    pid = os.getpid()
    try:
        entry = Entry(
            job.membership.job,
            job.names[job.rank],
            job.rank,
            pid,
            _started(pid),
            _processes(),
            time.time(),
            _command(),
            name_of(job),
            key_of(job).hex(),
            job.settings.encrypt,
            tuple((place.addresses, place.port) for place in job.questions.places),
        )
        path = directory() / f"{pid}-{job.rank}-{os.urandom(4).hex()}.json"
        write_private(path, json.dumps(asdict(entry)).encode(), replace=True, sync=False)
        return path
    except (OSError, Refused) as error:
        _log.debug("this job is not in the list of running jobs: %s", error)
        return None


def _read(path: Path) -> Entry | None:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & 0o077 or status.st_size > _MOST_BYTES:
            return None
        fields = json.loads(file.read())
    fields["addresses"] = tuple((tuple(found), port) for found, port in fields["addresses"])
    return Entry(**fields)


def _entries() -> Iterator[Entry]:
    here = _processes()
    for path in sorted(directory().glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            entry = _read(path)
            if entry is None or entry.processes != here:
                continue
            if _started(entry.pid) == entry.start:
                yield entry
            else:
                path.unlink(missing_ok=True)


def found_jobs() -> list[Entry]:
    """The jobs of this user that have ranks on this machine, the latest first; one entry for each."""
    by_name: dict[str, Entry] = {}
    for entry in _entries():
        before = by_name.get(entry.name)
        if before is None or entry.rank < before.rank:
            by_name[entry.name] = entry
    return sorted(by_name.values(), key=lambda entry: -entry.began)
