"""Hosts as namespaces: what lives in a lab is known by the lab's own hosts file, mounted over /etc/hosts."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.lab.errors import LabError

__all__ = ["ProcessIdentity", "batch", "check_machine", "enter", "kill_all", "members", "start_holder"]

# The process that keeps a host alive: it sets the host up, says so, and waits until its standard input ends. Where the
# machine filters what its bridges forward, a lab's do without: there is nothing to filter, and every packet would pay.
_INIT = """
set -e
echo "$1" > /proc/sys/kernel/hostname
mount --bind "$2" /etc/hosts
mount -t sysfs sysfs /sys 2>/dev/null || true
for file in /proc/sys/net/bridge/bridge-nf-call-*; do (echo 0 > "$file") 2>/dev/null || true; done
echo ready
exec "${@:3}"
"""
_KILL_SECONDS = 20.0


@dataclass(frozen=True)
class ProcessIdentity:
    """A process and its start, in clock ticks after boot, as ids are reused. One of them holds a host's namespaces."""

    pid: int
    started: int

    @classmethod
    def own(cls) -> ProcessIdentity:
        """This process."""
        started = _started(os.getpid())
        assert started is not None
        return cls(os.getpid(), started)

    def alive(self) -> bool:
        """Whether it still runs."""
        return _started(self.pid) == self.started


def check_machine() -> None:
    """Raises LabError when this machine, or this user, cannot have a lab."""
    if os.geteuid() != 0:
        raise LabError(
            "a lab needs root: it makes network namespaces and shapes their links; run it with sudo, "
            "in a container with --privileged"
        )
    packages = {
        "ip": "iproute2",
        "tc": "iproute2",
        "nsenter": "util-linux",
        "unshare": "util-linux",
        "bash": "bash",
    }
    missing = [name for name in packages if shutil.which(name) is None]
    if missing:
        wanted = " ".join(sorted({packages[name] for name in missing}))
        raise LabError(f"a lab needs {', '.join(missing)}: install {wanted} (Debian's names)")


def start_holder(
    name: str, hosts_file: Path, *, keep: bool
) -> tuple[ProcessIdentity, subprocess.Popen[bytes]]:
    """Makes the namespaces of a host. They last as long as the process, which ends with this one unless ``keep``."""
    last = ["sleep", "infinity"] if keep else ["cat"]
    process = subprocess.Popen(
        ["unshare", "--net", "--uts", "--mount", "bash", "-c", _INIT, "bash", name, str(hosts_file), *last],
        stdin=subprocess.DEVNULL if keep else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    if process.stdout.readline() != b"ready\n":
        process.kill()
        text = process.stderr.read().decode(errors="replace").strip()
        process.communicate()
        raise LabError(
            f"cannot make the namespaces of host {name}: {text}; in a container this takes --privileged, or the "
            "capabilities SYS_ADMIN and NET_ADMIN"
        )
    process.stdout.close()
    process.stderr.close()
    started = _started(process.pid)
    assert started is not None
    return ProcessIdentity(process.pid, started), process


def enter(holder: ProcessIdentity, folder: str | None = None) -> list[str]:
    """The beginning of a command that runs in a host; it becomes that command, under the same process id."""
    where = [] if folder is None else [f"--wd={folder}"]
    return ["nsenter", f"--target={holder.pid}", "--net", "--uts", "--mount", *where, "--"]


def batch(holder: ProcessIdentity, program: str, commands: Sequence[str]) -> None:
    """Runs ``commands`` of ``ip`` or ``tc`` in a host; LabError with the first that fails."""
    if not commands:
        return
    done = subprocess.run(
        [*enter(holder), program, "-batch", "-"],
        input="\n".join(commands) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return
    if not holder.alive():
        raise LabError("the lab is gone: the process that held this host has ended")
    text = done.stderr.strip()
    if "netem" in "".join(commands) and "qdisc" in text:
        raise LabError(
            "this kernel has no netem, which delay and loss need (modprobe sch_netem); rates work without"
        )
    raise LabError(f"{program} failed: {text}; the commands were: {'; '.join(commands)}")


def members(marker: str) -> list[int]:
    """The processes whose /etc/hosts is the lab's: all that live in its hosts."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if marker in Path(f"/proc/{name}/mountinfo").read_text(errors="replace"):
                    found.append(int(name))
    return found


def kill_all(marker: str) -> None:
    """Kills what lives in a lab, until nothing does; LabError if something stays."""
    deadline = time.monotonic() + _KILL_SECONDS
    while True:
        left = [pid for pid in members(marker) if pid != os.getpid() and not _is_zombie(pid)]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise LabError(f"processes {left} of the lab do not end")
        time.sleep(0.005)


def _stat(pid: int) -> list[bytes] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None


def _started(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[19]) if fields is not None and fields[0] != b"Z" else None


def _is_zombie(pid: int) -> bool:
    fields = _stat(pid)
    return fields is None or fields[0] == b"Z"
