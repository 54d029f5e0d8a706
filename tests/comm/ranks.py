"""Starts the ranks of a small job as processes, without the launcher: a store in this process, one script each."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import fork_server
from slipstream.comm.rendezvous.store_server import StoreServer
from slipstream.launch.torch_rendezvous import master_port

TRANSPORTS = ("tcp", "shm", "mixed")
PYTHON = sys.executable


@dataclass
class Rank:
    """A started rank; its output goes to files, so that it can never block on a full pipe."""

    number: int
    process: fork_server.Process | subprocess.Popen[bytes]
    output: Path
    environment: dict[str, str]

    def text(self) -> str:
        return self.output.read_text(errors="replace")


def transport_environment(transport: str, rank: int) -> dict[str, str]:
    """tcp, shm (all on one host), or mixed (even and odd ranks pretend to be two hosts)."""
    if transport == "mixed":
        return {"SLIPSTREAM_HOST_ID": f"pretended-{rank % 2}", "SLIPSTREAM_INTERFACE": "lo"}
    return {"SLIPSTREAM_TRANSPORT": transport}


def wait_until(what: str, true: Callable[[], bool], job: Sequence[Rank]) -> None:
    """Polls files that other processes write, and states of processes."""
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline, (what, [r.text() for r in job])
        time.sleep(0.005)


@contextmanager
def started(
    script: Path,
    n: int,
    *,
    transport: str = "shm",
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    prefix: Mapping[int, Sequence[str]] | None = None,
    store_process: Sequence[str] | None = None,
    encrypt: bool = False,
    envs: Mapping[int, Mapping[str, str]] | None = None,
    meet: Mapping[str, str] | None = None,
    new: bool = False,
) -> Iterator[list[Rank]]:
    """Runs ``script`` as ``n`` ranks; whatever is left of them is killed at the end.

    ``prefix``: per rank, a command to put in front (``ip netns exec ...``). ``store_process``: a command that
    serves the store and prints its address, instead of a store in this process. ``encrypt``: that one does.
    ``envs``: more variables of some ranks. ``meet``: those that say where rank 0 serves the store itself, if it does.
    ``new``: each rank is a new interpreter, not a fork of one that has imported slipstream.
    """
    secret = secrets.token_bytes(32)
    ranks: list[Rank] = []
    with _store(secret, store_process, encrypt) as store, tempfile.TemporaryDirectory() as folder:
        try:
            for r in range(n):
                environment = {
                    **os.environ,
                    **({"SLIPSTREAM_STORE": store} if meet is None else meet),
                    "SLIPSTREAM_SECRET": secret.hex(),
                    "SLIPSTREAM_RANK": str(r),
                    "SLIPSTREAM_SIZE": str(n),
                    "OMP_NUM_THREADS": "1",
                    "PYTHONUNBUFFERED": "1",
                    **transport_environment(transport, r),
                    **(env or {}),
                    **(envs or {}).get(r, {}),
                }
                output = Path(folder) / f"rank{r}"
                before = (prefix or {}).get(r, ())
                with output.open("wb") as file:
                    process = (
                        _new_interpreter([*before, sys.executable, str(script), *args], environment, file)
                        if before or new
                        else fork_server.Process(script, args, environment, file.fileno())
                    )
                ranks.append(Rank(r, process, output, environment))
            yield ranks
        finally:
            for rank in ranks:
                if rank.process.poll() is None:
                    rank.process.kill()
                rank.process.wait()


def _new_interpreter(
    command: Sequence[str], environment: Mapping[str, str], output: BinaryIO
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    )


def meeting_place(way: str, folder: Path) -> dict[str, str]:
    """For ``meet`` of `started`: by a "file" in ``folder``, or by a "port" as torch.distributed has it."""
    if way == "file":
        return {"SLIPSTREAM_RENDEZVOUS": f"file://{folder}/meet"}
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(master_port(local=True))}


@contextmanager
def _store(secret: bytes, command: Sequence[str] | None, encrypt: bool) -> Iterator[str]:
    if command is None:
        server = StoreServer("127.0.0.1", secret, "job", encrypt=encrypt)
        try:
            yield "{}:{}".format(*server.address[:2])
        finally:
            server.close()
        return
    env = {**os.environ, "SLIPSTREAM_SECRET": secret.hex()}
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def run(script: Path, n: int, *, timeout: float = 240, **options: object) -> list[str]:
    """Runs ``script`` as ``n`` ranks to their end; returns what each printed. AssertionError if one fails."""
    with started(script, n, **options) as ranks:  # type: ignore[arg-type]
        for rank in ranks:
            try:
                rank.process.wait(timeout)
            except subprocess.TimeoutExpired:
                outputs = "\n".join(f"--- rank {r.number}\n{r.text()}" for r in ranks)
                raise AssertionError(f"rank {rank.number} is not done after {timeout} s\n{outputs}") from None
        failed = [r for r in ranks if r.process.returncode != 0]
        outputs = "\n".join(f"--- rank {r.number} (exit {r.process.returncode})\n{r.text()}" for r in failed)
        assert not failed, outputs
        return [r.text() for r in ranks]


def marked(mark: str, text: str) -> str:
    """The rest of the line of ``text`` that begins with ``mark``; warnings may stand before and behind it.

    AssertionError with the text if no line does.
    """
    found = [line for line in text.splitlines() if line.startswith(mark)]
    assert found, text
    return found[0].removeprefix(mark)
