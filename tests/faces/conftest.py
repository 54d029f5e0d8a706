"""Ranks for the tests of the faces: processes that stay, so that PyTorch is imported once and not in every
test.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).with_name("rank_process.py")
PATIENCE = 120.0  # seconds a check may take; one that takes longer hangs
AFTERMATH = 20.0  # seconds in which the other ranks must end once one has failed


class Ranks:
    """N processes, each a rank of one job, that run functions of the test files together."""

    def __init__(self, size: int, folder: Path) -> None:
        self.size = size
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []
        self._starts = 0

    def _start(self) -> None:
        self._starts += 1
        meeting = self._folder / f"meeting-{self.size}-{self._starts}"
        job = {
            "SLIPSTREAM_RENDEZVOUS": f"file://{meeting}",
            "SLIPSTREAM_SECRET": secrets.token_hex(32),
            "SLIPSTREAM_SIZE": str(self.size),
            "OMP_NUM_THREADS": "1",
        }
        for rank in range(self.size):
            ours, theirs = Pipe()
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, str(WORKER), str(theirs.fileno())],
                    env={**os.environ, **job, "SLIPSTREAM_RANK": str(rank)},
                    pass_fds=[theirs.fileno()],
                )
            )
            theirs.close()
            self._pipes.append(ours)

    def stop(self) -> None:
        """Ends the processes, by force where asking does not help."""
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

    def __call__(self, check: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Runs ``check(*arguments)`` on all ranks; returns their results, or fails with their tracebacks."""
        if not self._processes:
            self._start()
        file = check.__code__.co_filename
        for pipe in self._pipes:
            pipe.send((file, check.__name__, arguments))
        answers: dict[int, tuple[bool, Any]] = {}
        patience = PATIENCE
        while len(answers) < self.size:
            left = [pipe for rank, pipe in enumerate(self._pipes) if rank not in answers]
            done = wait(left, patience)
            if not done:
                break
            for pipe in done:
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    answers[rank] = pipe.recv()  # type: ignore[union-attr]
                except (EOFError, OSError):
                    answers[rank] = (False, "the process ended")
                if not answers[rank][0]:
                    patience = AFTERMATH
        wrong = [f"rank {rank}:\n{text}" for rank, (good, text) in sorted(answers.items()) if not good]
        wrong += [f"rank {rank}: no answer" for rank in range(self.size) if rank not in answers]
        if wrong:
            for process in self._processes:
                process.kill()
            self.stop()
            pytest.fail("\n".join(wrong), pytrace=False)
        return [answers[rank][1] for rank in range(self.size)]


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Ranks]]:
    """Jobs by size, each started when first used."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("faces")
    found = {size: Ranks(size, folder) for size in (1, 2, 3)}
    yield found
    for ranks in found.values():
        ranks.stop()


@pytest.fixture
def two(jobs: dict[int, Ranks]) -> Ranks:
    """A job of two ranks."""
    return jobs[2]


@pytest.fixture
def three(jobs: dict[int, Ranks]) -> Ranks:
    """A job of three ranks: no power of two, and enough for process sets."""
    return jobs[3]
