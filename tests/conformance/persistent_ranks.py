"""Processes that stay: the ranks of a job started once, which then serve many requests.

Importing PyTorch takes seconds, so a process for every test is slow. These live until one of them fails, hangs or
dies; then all are replaced by fresh ones before the next request, because a failed collective leaves its group
unusable.

A script is a rank if it ends in ``serve(handler)``; `PersistentRanks` starts it ``size`` times.
"""

from __future__ import annotations

import faulthandler
import os
import secrets
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

__all__ = ["Answer", "PersistentRanks", "serve"]

STARTING = 120.0  # seconds until a fresh rank must have imported what it needs
AFTERMATH = 3.0  # seconds the others get to tell their own story once a rank has failed
TAIL = 6000  # characters of a lost rank's output that are kept


@dataclass(frozen=True)
class Answer:
    """What became of a request on one rank.

    ``kind``: "done" (``value`` is what the handler returned), "raised" (its traceback), "lost" (the process ended
    or hung: the end of its output) or "stopped" (it was waiting when another rank had failed). ``order``: 0 for the
    rank that answered first.
    """

    kind: str
    value: Any
    order: int


class PersistentRanks:
    """``size`` processes that run ``script`` and answer requests together, replaced when one of them fails."""

    def __init__(self, script: Path, size: int, env: Mapping[str, str] | None = None) -> None:
        self.size = size
        self._script = script
        self._env = dict(env or {})
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> PersistentRanks:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._folder.cleanup()

    def ask(
        self, request: Any, timeout: float, good: Callable[[Any], bool] = lambda value: True
    ) -> list[Answer]:
        """Has all ranks handle ``request``, at most ``timeout`` seconds; one answer a rank.

        After an answer that is not "done", or whose value is not ``good``, the ranks are replaced.
        """
        if not self._processes:
            self._start()
        offsets = [self._output(rank).stat().st_size for rank in range(self.size)]
        answers: dict[int, Answer] = {}
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send((timeout, request))
            except OSError:
                answers[rank] = Answer("lost", self._obituary(rank, 0), len(answers))
        failed = bool(answers)
        deadline = time.monotonic() + (AFTERMATH if failed else timeout + 10)
        while len(answers) < self.size:
            left = [pipe for rank, pipe in enumerate(self._pipes) if rank not in answers]
            ready = wait(left, max(deadline - time.monotonic(), 0))
            if not ready:
                break
            for pipe in ready:
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    kind, value = pipe.recv()  # type: ignore[union-attr]
                except (EOFError, OSError):
                    kind, value = "lost", self._obituary(rank, offsets[rank])
                answers[rank] = Answer(kind, value, len(answers))
                if not failed and not (kind == "done" and good(value)):
                    failed = True
                    deadline = time.monotonic() + AFTERMATH
        for rank in range(self.size):
            answers.setdefault(rank, Answer("stopped", "was waiting when another rank had failed", self.size))
        if failed or any(answer.kind != "done" for answer in answers.values()):
            self.stop(force=True)
        return [answers[rank] for rank in range(self.size)]

    def stop(self, force: bool = False) -> None:
        """Ends the processes, by force at once or where asking does not help."""
        for process in self._processes:
            if force:
                process.kill()
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._pipes.clear()
        self._processes.clear()

    def _output(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank{rank}"

    def _obituary(self, rank: int, offset: int) -> str:
        """How a rank ended: its exit status and the end of what it printed."""
        try:
            status = self._processes[rank].wait(5)
        except subprocess.TimeoutExpired:
            return "closed its pipe and stayed"
        with self._output(rank).open("rb") as file:
            file.seek(offset)
            printed = file.read().decode(errors="replace")[-TAIL:]
        ending = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        return f"the process ended ({ending}); the end of its output:\n{printed}"

    def _start(self) -> None:
        job = {
            "SLIPSTREAM_SECRET": secrets.token_hex(32),
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(self.size),
        }
        for rank in range(self.size):
            ours, theirs = Pipe()
            with self._output(rank).open("wb") as output:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, str(self._script), str(theirs.fileno())],
                        env={**os.environ, **job, **self._env, "RANK": str(rank)},
                        pass_fds=[theirs.fileno()],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
            theirs.close()
            self._pipes.append(ours)
        for rank, pipe in enumerate(self._pipes):
            try:
                ready = pipe.poll(STARTING) and pipe.recv() == "ready"
            except (EOFError, OSError):
                ready = False
            if not ready:
                end = self._obituary(rank, 0)
                self.stop(force=True)
                raise RuntimeError(f"rank {rank} of {self._script.name} did not start: {end}")


def serve(handler: Callable[[Any], Any], arguments: Sequence[str] = sys.argv) -> None:
    """Handles requests until the pipe closes. A request that takes too long prints all stacks and ends the process."""
    pipe = Connection(int(arguments[1]))
    pipe.send("ready")
    while True:
        try:
            timeout, request = pipe.recv()
        except EOFError:
            return
        faulthandler.dump_traceback_later(timeout, exit=True)
        try:
            answer = ("done", handler(request))
        except BaseException:
            answer = ("raised", traceback.format_exc())
        faulthandler.cancel_dump_traceback_later()
        pipe.send(answer)
