"""Starts real `slipstream reducer` processes on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import slipstream.reducer
from slipstream.comm.reducers.client import Request, register

SECRET = bytes(range(32))
SOURCE = Path(slipstream.reducer.__file__).parents[2]
LIMIT = 60.0


class PortInUse(Exception):
    """The reducer cannot listen."""


@dataclass
class Service:
    """A reducer that listens; its log goes to a file."""

    process: subprocess.Popen[str]
    port: int
    metrics_port: int
    log: Path

    def register(
        self, *, job: str = "job", workers: int = 2, secret: bytes = SECRET, encrypt: bool = False
    ) -> int:
        return register("127.0.0.1", self.port, secret, Request(job, workers, 2), encrypt=encrypt)

    def page(self, name: str) -> tuple[int, str]:
        """Status and text of a page of the metrics port."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.metrics_port}/{name}", timeout=LIMIT
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> dict[str, float]:
        status, text = self.page("metrics")
        assert status == 200
        pairs = (line.split() for line in text.splitlines() if not line.startswith("#"))
        return {name.removeprefix("slipstream_reducer_"): float(value) for name, value in pairs}


@contextmanager
def calling_from(address: str) -> Iterator[None]:
    """Connections of this process come from ``address`` (127.x.y.z), as those of another host would."""
    connect = socket.create_connection

    def create(to: tuple[str, int], timeout: float | None = None) -> socket.socket:
        return connect(to, timeout, source_address=(address, 0))

    with mock.patch("socket.create_connection", create):
        yield


@contextmanager
def started(folder: Path, *arguments: str, port: int = 0, encrypt: bool = False) -> Iterator[Service]:
    """A reducer with ``arguments``; killed at the end if it still runs. Raises PortInUse."""
    paths = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"SLIPSTREAM_REDUCER_SECRET": SECRET.hex(), "PYTHONPATH": paths}
    env["SLIPSTREAM_ENCRYPT"] = str(int(encrypt))
    command = [sys.executable, "-m", "slipstream", "reducer", "--bind", "127.0.0.1", "--port", str(port)]
    log = folder / f"reducer-{time.monotonic_ns()}.log"
    with (
        log.open("wb") as file,
        subprocess.Popen(
            [*command, "--metrics-port", "0", "--json", *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line and "Address already in use" in log.read_text():
                raise PortInUse
            assert line, log.read_text()
            found = json.loads(line)
            yield Service(process, found["port"], found["metrics_port"], log)
        finally:
            if process.poll() is None:
                process.kill()


def wait_for(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.01)
