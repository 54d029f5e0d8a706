"""A lab with reducers that tests harm and mend, and jobs beside them that check every sum."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from reducer.service import SECRET, SOURCE, wait_for
from slipstream.lab import Lab

PORT = 29700  # of every reducer, on a host of its own
OPTIONS = os.environ.get("REDUCER_OPTIONS", "").split()  # of `slipstream reducer`
ENVIRONMENT = {
    "SLIPSTREAM_REDUCER_SECRET": SECRET.hex(),
    "PYTHONPATH": str(SOURCE),
    "PYTHONFAULTHANDLER": "1",
}

needs_lab = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="a lab needs root and iproute2"
)


class Reducers:
    """The lab's reducers, by name: those that run."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Begins one and waits until it listens."""
        command = [sys.executable, "-m", "slipstream", "reducer", "--bind", "0.0.0.0", "--port", str(PORT)]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = self.lab.popen(
                name, [*command, "--json", *OPTIONS], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=log
            )
        self.running[name] = process
        assert process.stdout is not None
        assert process.stdout.readline(), self.log(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-20000:]

    def harm(self, name: str, how: str) -> None:
        """``how``: kill, freeze or cut."""
        if how == "cut":
            self.lab.cut(name)
        else:
            self.running[name].send_signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)

    def mend(self, name: str, how: str) -> None:
        """After `harm`: it is there again, or will be in a moment."""
        if how == "cut":
            self.lab.heal(name)
        elif how == "kill":
            self.close(name)
            self.start(name)
        else:
            self.running[name].send_signal(signal.SIGCONT)

    def close(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def say_where(self) -> None:
        """Ends them and prints their logs, and where in Python each of their threads was."""
        for name, process in self.running.items():
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            print(f"--- {name}\n{self.log(name)}")

    def memory(self) -> dict[str, int]:
        """The most bytes that each has held at once."""
        found = {}
        for name, process in self.running.items():
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            found[name] = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
        return found


@contextmanager
def reducers(lab: Lab, folder: Path) -> Iterator[Reducers]:
    """All of the lab's, started."""
    found = Reducers(lab, folder)
    try:
        for host in lab.spec.hosts:
            if host.reducer:
                found.start(host.name)
        yield found
    except BaseException:
        found.say_where()
        raise
    finally:
        for name in list(found.running):
            found.close(name)


class Job:
    """Ranks that run, and what their files (see losses_rank.py) tell of them."""

    def __init__(self, folder: Path, workers: int, process: subprocess.Popen[bytes]) -> None:
        self.folder, self.workers, self.process = folder, workers, process

    def lines(self, kind: str) -> list[list[list[str]]]:
        """Of each rank, the words of its lines of that kind, but the first."""
        files = [self.folder / f"rank{r}" for r in range(self.workers)]
        texts = [file.read_text() if file.exists() else "" for file in files]
        # What follows the last line's end is not whole yet.
        split = [[line.split() for line in text.split("\n")[:-1]] for text in texts]
        return [[words[1:] for words in one if words[0] == kind] for one in split]

    def reducers(self) -> list[tuple[int, str]]:
        """What each rank knows: how often any was lost, and a digit for each reducer, 1: it is used.

        No digits: it knows nothing yet.
        """
        assert self.process.poll() is None, self.output()
        last = [found[-1] if found else ["0", ""] for found in self.lines("reducers")]
        return [(int(count), used) for count, used in last]

    def uses(self, used: str) -> bool:
        """Whether all ranks use these reducers, a digit for each."""
        return all(now == used for _, now in self.reducers())

    def lost(self) -> list[int]:
        """How often each rank has lost a reducer."""
        return [count for count, _ in self.reducers()]

    def missed(self, before: list[int], number: int) -> bool:
        """Whether all ranks have lost one since ``before``, or at least do not use that one.

        On a busy machine a reducer may seem lost by itself, just before somebody harms it.
        """
        return all(
            count > then or used[number] == "0"
            for then, (count, used) in zip(before, self.reducers(), strict=True)
        )

    def turns(self) -> list[tuple[int, float]]:
        """How many steps rank 0 had done, and when."""
        assert self.process.poll() is None, self.output()
        return [(int(steps), float(when)) for steps, when in self.lines("turn")[0]]

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")[-20000:]

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """As `service.wait_for`; says what the job printed if that does not come."""
        try:
            wait_for(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output()}") from None

    def stop(self) -> None:
        """Ends it in good order; AssertionError if a rank failed."""
        (self.folder / "stop").touch()
        assert self.process.wait(60) == 0, self.output()


@contextmanager
def job(lab: Lab, folder: Path, hosts: Sequence[str], command: Sequence[str]) -> Iterator[Job]:
    """A rank of ``command`` on each host, with all reducers; killed at the end if it still runs."""
    folder.mkdir(exist_ok=True)
    names = [host.name for host in lab.spec.hosts if host.reducer]
    launch = [sys.executable, "-m", "slipstream", "run", "-np", str(len(hosts)), "-H", ",".join(hosts)]
    launch += ["--reducers", ",".join(f"{name}:{PORT}" for name in names), "--"]
    with (folder / "output").open("wb") as output:
        process = lab.popen(
            hosts[0], [*launch, sys.executable, *command], env=ENVIRONMENT, stdout=output, stderr=output
        )
    try:
        yield Job(folder, len(hosts), process)
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        process.kill()
        process.wait()
