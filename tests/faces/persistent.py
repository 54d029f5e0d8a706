"""Processes that stay from test to test, so that PyTorch is imported once: they run functions of the test files.

A request is sent to the first N of them at once. Whatever goes wrong in one (an exception, a death, no answer in
time) becomes one failure with what all of them have to say, and new processes serve the next request.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fork_server

TESTS = Path(__file__).resolve().parents[1]
PATIENCE = 240.0  # seconds a check may take; one that takes longer hangs
AFTERMATH = 20.0  # seconds in which the other ranks must end once one has failed
STACKS = signal.SIGUSR1  # a process prints the stacks of its threads when it gets it
MOST_OUTPUT = 20_000  # characters of a rank's output that a failure shows

_modules: dict[str, ModuleType] = {}


@dataclass
class _Process:
    fork: fork_server.Process
    pipe: Connection
    output: Path
    seen: int = 0  # bytes of the output that belong to earlier requests

    def new_output(self) -> str:
        return self.output.read_bytes()[self.seen :].decode(errors="replace")[-MOST_OUTPUT:]

    def await_stacks(self) -> None:
        """Asks for the stacks of its threads, and waits until they are in its output."""
        self.fork.send_signal(STACKS)
        end = time.monotonic() + 5
        while "(most recent call first)" not in self.new_output() and time.monotonic() < end:
            time.sleep(0.01)

    def end(self) -> None:
        """Ends it, by force where closing its pipe did not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.fork.wait(10)
        self.fork.kill()
        self.fork.wait()


class Processes:
    """Processes of one script, numbered from 0 and started when first needed; see `serve` for their side.

    ``generation`` counts how often all of them were ended.
    """

    def __init__(
        self, script: Path, folder: Path, environment: Callable[[int, int], dict[str, str]] = lambda *_: {}
    ) -> None:
        """``environment(number, generation)``: further variables of a process; the generation counts restarts."""
        self._script = script
        self._folder = folder
        self._environment = environment
        self._running: list[_Process] = []
        self.generation = 0

    def _start(self) -> None:
        ours, theirs = Pipe()
        number = len(self._running)
        output = self._folder / f"output-{self.generation}-{number}"
        paths = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        plain = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        with output.open("wb") as file:
            environment = plain | self._environment(number, self.generation)
            fork = fork_server.Process(self._script, [], environment, file.fileno(), [theirs.fileno()])
        theirs.close()
        self._running.append(_Process(fork, ours, output))

    def stop(self, *, kill: bool = False) -> None:
        """Ends all processes; the next request starts new ones."""
        for process in self._running:
            process.pipe.close()
            if kill:
                process.fork.kill()
        for process in self._running:
            process.end()
        self._running.clear()
        self.generation += 1

    @property
    def running(self) -> int:
        """How many there are."""
        return len(self._running)

    def ask(
        self, requests: Sequence[Any], *, dying: Collection[int] = (), patience: float = PATIENCE
    ) -> list[Any]:
        """What process i answers to request i, within ``patience`` seconds; fails with the tracebacks of all.

        ``dying``: processes that the request ends on purpose: they answer nothing (None), and all are new afterwards.
        """
        count = len(requests)
        while len(self._running) < count:
            self._start()
        asked = self._running[:count]
        for process, request in zip(asked, requests, strict=True):
            process.seen = process.output.stat().st_size
            with contextlib.suppress(OSError):
                process.pipe.send_bytes(pickle.dumps(request))
        answers = self._gather(asked, dying, patience)
        wrong = {number: text for number, (good, text) in answers.items() if not good}
        silent = [number for number in range(count) if number not in answers]
        for number in silent:
            wrong[number] = "no answer; its threads:"
            asked[number].await_stacks()
        outputs = {number: process.new_output() for number, process in enumerate(asked)}
        if wrong or dying:
            self.stop(kill=True)
        if wrong:
            report = [
                f"rank {number}:\n{wrong.get(number, 'fine')}\n{outputs[number]}"
                for number in range(count)
                if number in wrong or outputs[number]
            ]
            pytest.fail("\n".join(report), pytrace=False)
        return [answers[number][1] for number in range(count)]

    @staticmethod
    def _gather(
        asked: list[_Process], dying: Collection[int], patience: float
    ) -> dict[int, tuple[bool, Any]]:
        answers: dict[int, tuple[bool, Any]] = {}
        numbers = {process.pipe: number for number, process in enumerate(asked)}
        end = time.monotonic() + patience
        while len(answers) < len(asked):
            left = [pipe for pipe, number in numbers.items() if number not in answers]
            ready = wait(left, max(0.0, end - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                number = numbers[pipe]  # type: ignore[index]
                try:
                    answers[number] = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
                except (EOFError, OSError):
                    code = asked[number].fork.wait()
                    answers[number] = (
                        number in dying,
                        None if number in dying else f"ended with code {code}",
                    )
                if not answers[number][0]:
                    end = min(end, time.monotonic() + AFTERMATH)
        return answers


def load(file: str) -> ModuleType:
    """The module in a file, loaded once."""
    if file not in _modules:
        name = re.sub(r"\W", "_", str(Path(file).relative_to(TESTS)))  # the same in all processes
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # where pickle and dataclasses look
        spec.loader.exec_module(module)
        _modules[file] = module
    return _modules[file]


def named(check: Callable[..., Any]) -> tuple[str, str]:
    """The file and the name by which a process finds the function of a test module."""
    return check.__code__.co_filename, check.__name__


def serve(answer: Callable[[Any], Any]) -> None:
    """A process's side: answers requests with (True, result) or (False, traceback) until the pipe closes."""
    faulthandler.enable()
    faulthandler.register(STACKS, all_threads=True)
    pipe = Connection(int(sys.argv[1]))
    while True:
        try:
            request = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            reply = pickle.dumps((True, answer(request)))
        except BaseException:
            reply = pickle.dumps((False, traceback.format_exc()))
        pipe.send_bytes(reply)
