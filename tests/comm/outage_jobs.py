"""Jobs of outage_rank.py for the tests of outages: on the hosts of a lab, or on this one."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

RANK = Path(__file__).with_name("outage_rank.py")
COMMAND = [sys.executable, "-m", "slipstream", "run", "--no-prefix", "-np"]

needs_lab = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="a lab needs root and iproute2"
)


class Job:
    """Checked all-reduces that go on until told to end; see outage_rank.py."""

    def __init__(self, start: Callable[..., Any], folder: Path, n: int, *more: str, **env: str) -> None:
        command = [*COMMAND, str(n), *more, "--", sys.executable, str(RANK), str(folder)]
        with (folder / "output").open("wb") as file:
            self._runs(start(command, env=env, stdout=file, stderr=subprocess.STDOUT), folder, n)

    @classmethod
    def of(cls, process: Any, folder: Path, n: int) -> Job:
        """What somebody else has started, as ``process``: its output goes to ``folder``/output."""
        job = cls.__new__(cls)
        job._runs(process, folder, n)
        return job

    def _runs(self, process: Any, folder: Path, n: int) -> None:
        self.process, self.folder, self.n = process, folder, n
        self.wait_for(lambda: all((folder / f"ready-{rank}").exists() for rank in range(n)))

    def pid(self, rank: int) -> int:
        return int((self.folder / f"ready-{rank}").read_text())

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def calls(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return int((self.folder / "calls").read_text())
        return 0

    def wait_for(self, what: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert self.process.poll() is None, self.output()[-5000:]
            assert time.monotonic() < end, self.output()[-5000:]
            time.sleep(0.01)  # a poll of files that other processes write

    def go(self) -> None:
        (self.folder / "go").touch()
        self.goes_on()

    def goes_on(self, calls: int = 10) -> None:
        target = self.calls() + calls
        self.wait_for(lambda: self.calls() >= target)

    def reset(self, rank: int) -> None:
        order = self.folder / f"reset-{rank}"
        order.touch()
        self.wait_for(lambda: not order.exists())

    def end(self) -> None:
        (self.folder / "stop").touch()
        assert self.process.wait(60) == 0, self.output()[-5000:]

    def fails(self, seconds: float = 60) -> str:
        assert self.process.wait(seconds) != 0
        return self.output()


@contextlib.contextmanager
def lab_job(
    folder: Path,
    n: int = 2,
    rate: str | None = "500mbit",
    before: Callable[[Any], None] | None = None,
    **env: str,
) -> Iterator[tuple[Any, Job]]:
    """``before``: is called with the lab before the job starts."""
    from slipstream.lab import Lab

    with Lab(n, rate=rate) as lab:
        if before is not None:
            before(lab)
        yield lab, Job(lambda command, **more: lab.popen("h1", command, **more), folder, n, **env)


@contextlib.contextmanager
def card_down(lab: Any, host: str, seconds: float) -> Iterator[None]:
    """The card of a host is down for so long: routes vanish, and what is sent fails at once."""
    lab.run(host, ["ip", "link", "set", "eth0", "down"])
    begin = time.monotonic()
    try:
        yield
        time.sleep(max(0.0, begin + seconds - time.monotonic()))  # the outage is the thing tested
    finally:
        lab.run(host, ["ip", "link", "set", "eth0", "up"])


def local_job(folder: Path, n: int, **env: str) -> Job:
    """A job on this host that uses TCP."""

    def start(command: list[str], env: dict[str, str], **more: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env={**os.environ, **env}, **more)

    return Job(start, folder, n, SLIPSTREAM_TRANSPORT="tcp", **env)
