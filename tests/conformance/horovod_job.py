"""One job that runs tests of Horovod: what each rank wrote, and what follows from it for each test."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "BAD",
    "VERDICTS",
    "Job",
    "Result",
    "Stopped",
    "end_job",
    "has_hung",
    "last_words",
    "run_job",
    "verdicts",
]

HERE = Path(__file__).resolve().parent
VERDICTS = ("passed", "skipped", "failed", "hung", "died", "not run")
BAD = VERDICTS[2:]
POLL = 0.1  # seconds between two looks at what the ranks wrote
STARTING = (
    120.0  # seconds that the ranks get at least until each has found its tests, and after the last of them
)
ENDING = 15.0  # seconds that a job gets to end its ranks
LONGEST = 240  # characters of a reason

Entry = dict[str, Any]  # name, verdict, reason, seconds, at: a line of `results_plugin`


@dataclass(frozen=True)
class Result:
    """What became of a test in a job: one of VERDICTS, why in one line, and its seconds."""

    verdict: str
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Job:
    """How the jobs are started. ``launch``: a command with {ranks}; ``limit``: seconds a test may take."""

    launch: str
    checkout: Path
    limit: float

    def command(self, ranks: int, file: str) -> list[str]:
        """What runs the tests of ``file``, a path below `test`, on ``ranks`` ranks."""
        # Their conftest.py only adds a path; their settings are for other versions of pytest.
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "horovod_plugin", "-p", "no:cacheprovider"]
        tests += ["--noconftest", "-c", os.devnull, f"--rootdir={self.checkout}"]
        return [*shlex.split(self.launch.format(ranks=ranks)), *tests, str(self.checkout / "test" / file)]

    def environment(self, folder: Path, patterns: Sequence[str], without: Sequence[str]) -> dict[str, str]:
        """The variables of a job that writes into ``folder``."""
        paths = [str(HERE), str(self.checkout / "test" / "utils"), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "CHECKOUT_LIMIT": str(self.limit),
            "CHECKOUT_RESULTS": f"{folder}/results.",
            "CHECKOUT_TESTS": " ".join(patterns),
            "CHECKOUT_WITHOUT": " ".join(without),
            "OMP_NUM_THREADS": "1",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "TMPDIR": str(folder),
        }


class Stopped(BaseException):
    """The runner has been told to end; ``results``: of the tests that had ended well by then."""

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, Result] = {}


def run_job(
    job: Job, ranks: int, file: str, patterns: Sequence[str], without: Sequence[str] = ()
) -> dict[str, Result]:
    """Runs the tests of ``file`` that match ``patterns``, but those named in ``without``, in one job.

    The job is ended once no rank has begun or ended a test for the limit.

    The end of the job itself counts as the test "(end)", if it hangs. Raises `Stopped` if that ends the wait.
    """
    stopped: Stopped | None = None
    hung = False
    with tempfile.TemporaryDirectory(prefix="horovod-") as name:
        folder = Path(name)
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(
                job.command(ranks, file),
                cwd=job.checkout / "test",  # where no folder is called horovod
                env=job.environment(folder, patterns, without),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                hung = has_hung(process, job.limit, lambda: _written(folder, ranks, job.limit))
            except Stopped as error:
                stopped = error
            finally:
                end_job(process)
        told = {rank: _entries(folder / f"results.{rank}") for rank in range(ranks)}
        output_text = (folder / "output").read_text(errors="replace")
        last = last_words(output_text, process.returncode) if process.returncode else ""
        stacks = {
            rank: _innermost(folder / f"results.{rank}.stacks", Path(file).name) for rank in range(ranks)
        }
        results = verdicts(told, hung, job.limit, last, stacks)
    if stopped:
        stopped.results = {name: told for name, told in results.items() if told.verdict not in BAD}
        raise stopped
    return results


def _written(folder: Path, ranks: int, limit: float) -> tuple[list[tuple[str, int]], float]:
    """How much each rank has written, and how long it may stay as it is: longer before the first test and after all."""
    sizes = sorted((path.name, path.stat().st_size) for path in folder.glob("results.*[0-9]"))
    amid = len(sizes) == ranks and len(list(folder.glob("results.*.over"))) < ranks
    return sizes, limit if amid else max(limit, STARTING)


def has_hung(
    process: subprocess.Popen[bytes], limit: float, look: Callable[[], tuple[Any, float]] | None = None
) -> bool:
    """Waits for the end of ``process``, and returns whether it took too long.

    That is more than ``limit`` seconds or, with ``look``, more than the seconds it returns since the other value that
    it returns has changed. While this process itself is stopped, no time passes.
    """
    seen: Any = None
    quiet = 0.0
    while process.poll() is None:
        now, most = look() if look else (None, limit)
        if now != seen:
            seen, quiet = now, 0.0
        elif quiet > most:
            return True
        time.sleep(POLL)
        quiet += POLL
    return False


def end_job(process: subprocess.Popen[bytes]) -> None:
    """Ends the job, which ends its ranks, then what has remained of it."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _entries(path: Path) -> list[Entry]:
    """The lines of one rank; the last may be broken off."""
    found = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
    return found


def last_words(output: str, status: int) -> str:
    """The line of a job's output that says why it ended: the last that names an error, or else the last."""
    lines = [
        re.sub(r"^\[?\d+\]?[:|>]?\s*(<std(out|err)>:)?", "", line).strip() for line in output.splitlines()
    ]
    lines = [line for line in lines if line and not set(line) <= set("=-. ")]
    named = [
        line for line in lines if re.search(r"\w(Error|Mismatch|PeerLost|Timeout|[Ss]ignal \w+)\b", line)
    ]
    return f"exit status {status}: {(named or lines or ['no output'])[-1]}"[:LONGEST]


def _innermost(path: Path, name: str) -> str:
    """Where in the file ``name`` the stack that a hung test left stands."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = re.findall(rf'File ".*{re.escape(name)}", line (\d+) in (\w+)', text)
    return f"line {found[0][0]}" if found else "an unknown line"


def verdicts(
    told: Mapping[int, Sequence[Entry]], hung: bool, limit: float, last: str, stacks: Mapping[int, str]
) -> dict[str, Result]:
    """What became of each test, given the lines of each rank; ``last``: why the job ended, '' if it ended well.

    >>> def line(name, verdict, at): return {"name": name, "verdict": verdict, "reason": "", "seconds": 1.0, "at": at}
    >>> ended = {rank: [line("a", "collected", 1), line("a", "began", 2), line("a", "passed", 3)] for rank in (0, 1)}
    >>> verdicts(ended, False, 60.0, "", {})
    {'a': Result(verdict='passed', reason='', seconds=1.0)}
    >>> verdicts({**ended, 1: ended[1][:2]}, True, 60.0, "", {1: "line 7"})
    {'a': Result(verdict='hung', reason='rank 1 was in line 7 for 60 s', seconds=60.0)}
    """
    by_rank = {rank: _states(entries) for rank, entries in told.items()}
    names = dict.fromkeys(name for states in by_rank.values() for name in states)
    results = {}
    for name in names:
        of_test = {rank: states.get(name) for rank, states in by_rank.items()}
        results[name] = _verdict(of_test, hung, limit, last, stacks)
    if not results and (hung or last):
        results["(start)"] = Result(
            "hung" if hung else "died", f"no test within {limit:g} s" if hung else last
        )
    elif hung and not any(result.verdict == "hung" or "hung" in result.reason for result in results.values()):
        results["(end)"] = Result("hung", f"the job did not end within {limit:g} s of its last test", limit)
    return results


def _states(entries: Sequence[Entry]) -> dict[str, Entry]:
    """The last entry of each test, but a failure is not undone by what follows."""
    states: dict[str, Entry] = {}
    for entry in entries:
        if entry["name"] not in states or states[entry["name"]]["verdict"] != "failed":
            states[entry["name"]] = entry
    return states


def _verdict(
    of_test: Mapping[int, Entry | None], hung: bool, limit: float, last: str, stacks: Mapping[int, str]
) -> Result:
    """What became of one test, given the last entry of each rank: the failure that came first, if any."""
    entries = {rank: entry for rank, entry in of_test.items() if entry}
    failed = sorted((entry["at"], rank) for rank, entry in entries.items() if entry["verdict"] == "failed")
    within = [rank for rank, entry in entries.items() if entry["verdict"] == "began"]
    before = [rank for rank, entry in of_test.items() if not entry or entry["verdict"] == "collected"]
    if failed:
        first = entries[failed[0][1]]
        others = f"; rank {within[0]} hung" if within and hung else ""
        reason = f"rank {failed[0][1]}: {first['reason'][:LONGEST]}{others}"
        return Result("failed", reason, first["seconds"])
    if within and hung:
        return Result("hung", f"rank {within[0]} was in {stacks[within[0]]} for {limit:g} s", limit)
    if within or (0 < len(before) < len(of_test) and not hung):
        return Result("died", last)
    if before:
        return Result("not run", f"the job ended before rank {before[0]} came to it")
    entry = entries[min(entries)]
    return Result(entry["verdict"], entry["reason"][:LONGEST], round(entry["seconds"], 2))
