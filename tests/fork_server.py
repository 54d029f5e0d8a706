"""Starts Python scripts as forks of a process that has imported what they import: NumPy, slipstream, a framework.

A new interpreter spends a third of a second of processor time on these imports, with PyTorch nearly three seconds and
with TensorFlow seven, and the ranks of the tests are thousands. A script that is forked is its process's main module,
as usual; it ends as an interpreter does, too, but where it has PyTorch or TensorFlow: the interpreter would need half a
second to take them to pieces, so the process ends once the functions of `atexit` have run. What it does not have anew:
the command line in /proc, limits of resources (the server's), and memory, which holds what was imported for others.

`Process` is the tests' side. Run as a script, this file is the server: fork_server.py MODULE...
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

ALWAYS = ("slipstream", "slipstream.comm.membership.job")
FRAMEWORKS = {
    "torch": ("torch", "torch.distributed", "slipstream.torch"),
    "tensorflow": ("tensorflow", "slipstream.tensorflow"),
    "jax": ("jax", "slipstream.jax"),
}
_IMPORT = re.compile(rf"^\s*(?:import|from)\s+(?:slipstream\.)?({'|'.join(FRAMEWORKS)})\b", re.MULTILINE)
# Variables that frameworks read when they are imported: a server has those of its scripts.
_READ_AT_IMPORT = (
    "CUDA_VISIBLE_DEVICES",
    "JAX_PLATFORMS",
    "KERAS_BACKEND",
    "TF_CPP_MIN_LOG_LEVEL",
    "TF_USE_LEGACY_KERAS",
)
_MOST = 1 << 17  # bytes of a request
_MOST_PASSED = 4  # descriptors


class Process:
    """A script that runs in a fork of a server, with the part of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        script: Path,
        args: Sequence[str],
        environment: Mapping[str, str],
        output: int,
        passed: Sequence[int] = (),
    ) -> None:
        """``output``: the descriptor of a file that gets what the script prints.

        ``passed``: descriptors that the script has, too. It finds their numbers there as its last arguments.
        """
        imports = _imports(script.read_text(encoding="utf-8"), environment)
        settings = tuple((name, environment[name]) for name in _READ_AT_IMPORT if name in environment)
        request = json.dumps([str(script), list(args), dict(environment), os.getcwd()]).encode()
        self._report, theirs = os.pipe()
        try:
            socket.send_fds(_server(imports, settings, os.getpid()), [request], [output, theirs, *passed])
        finally:
            os.close(theirs)
        self.pid = self._read()
        self.returncode: int | None = None

    def _read(self) -> int:
        text = os.read(self._report, 16)  # the server writes 16 bytes at once
        if not text:
            raise RuntimeError("the fork server has ended")
        return int(text)

    def poll(self) -> int | None:
        """Its exit status, or minus the signal that ended it; None while it runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """As `poll`, once it has ended; TimeoutExpired if it has not within ``timeout`` seconds."""
        code = self._wait(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("a script in a fork", timeout)
        return code

    def _wait(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._report], [], [], seconds)[0]:
            self.returncode = self._read()
            os.close(self._report)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, if it has not ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it at once."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Asks it to end."""
        self.send_signal(signal.SIGTERM)


def _imports(script: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The modules that a server for this script imports: those of the first framework that it imports."""
    if keras := environment.get("KERAS_BACKEND"):
        legacy = environment.get("TF_USE_LEGACY_KERAS") == "1"
        return (*ALWAYS, keras, "slipstream.tensorflow.keras" if legacy else "slipstream.keras")
    found = _IMPORT.search(script)
    return (*ALWAYS, *(FRAMEWORKS[found[1]] if found else ()))


@functools.cache
def _server(imports: tuple[str, ...], settings: tuple[tuple[str, str], ...], _owner: int) -> socket.socket:
    """A server of this process. It ends when this process does, which closes its end of the socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen(
            [sys.executable, __file__, *imports],
            stdin=theirs,
            env={
                **{name: value for name, value in os.environ.items() if name not in _READ_AT_IMPORT},
                **dict(settings),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                "PYTHONUNBUFFERED": "1",
            },
            start_new_session=True,
        )
    return ours


def serve(imports: Sequence[str]) -> tuple[str, list[str]] | None:
    """Forks a process for each request; in such a process, returns the script and its arguments; None at the end."""
    requests = socket.socket(fileno=os.dup(0))
    for name in imports:
        __import__(name)
    gc.collect()
    gc.freeze()  # or the first collection in a fork copies what they share
    # By the descriptor of a process: its id, and where to report its end.
    running: dict[int, tuple[int, int]] = {}
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in running:
                pid, report = running.pop(descriptor)
                _say(report, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                poll.unregister(descriptor)
                os.close(descriptor)
                os.close(report)
                continue
            request, descriptors, *_ = socket.recv_fds(requests, _MOST, 2 + _MOST_PASSED)
            if not request:
                return None
            output, report, *passed = descriptors
            script, args, environment, folder = json.loads(request)
            pid = os.fork()
            if pid == 0:
                _become(environment, folder, output, passed)
                return script, [*args, *map(str, passed)]
            for descriptor in (output, *passed):
                os.close(descriptor)
            _say(report, pid)
            ended = os.pidfd_open(pid)
            running[ended] = (pid, report)
            poll.register(ended, select.POLLIN)


def _become(environment: Mapping[str, str], folder: str, output: int, passed: Sequence[int]) -> None:
    """In the fork: takes over what the request says, and nothing of the server's but its memory."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in passed:
            with contextlib.suppress(OSError):  # that of the listing itself
                os.close(number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    np.random.seed()  # or all forks would draw the same numbers


def _say(report: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(report, b"%16d" % number)


class _End:
    """How the script has ended."""

    def __init__(self) -> None:
        self.code: int | None = None
        atexit.register(self._leave)  # before all others, so it is called after them

    def _leave(self) -> None:
        if self.code is None or not sys.modules.keys() & {"torch", "tensorflow"}:
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(self.code)


def _run(script: str, args: Sequence[str], end: _End) -> None:
    sys.argv = [script, *args]
    sys.path[0] = str(Path(script).parent)
    sys.modules["__main__"] = main = ModuleType("__main__")
    main.__file__ = script
    code = compile(Path(script).read_bytes(), script, "exec")
    try:
        exec(code, main.__dict__)
        end.code = 0
    except SystemExit as error:
        end.code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    except Exception:
        end.code = 1
        raise


if __name__ == "__main__":
    the_end = _End()
    if (found := serve(sys.argv[1:])) is not None:
        _run(*found, the_end)
