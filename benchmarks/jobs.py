"""Starts the ranks of a benchmark on this host and collects what each of them measured.

Ranks are plain processes, or those of ``mpirun`` where Open MPI takes part: then all contenders share its
processes. A rank writes one JSON file; nothing is sent between ranks for the sake of the benchmark's records.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["JobFailed", "deliver", "run_ranks"]

# What another launcher may have left: the ranks of a benchmark are told who they are by this module alone.
_PLACEMENT = (
    *("SLIPSTREAM_RANK", "SLIPSTREAM_LOCAL_RANK", "SLIPSTREAM_CROSS_RANK", "SLIPSTREAM_STORE"),
    *("SLIPSTREAM_SIZE", "SLIPSTREAM_LOCAL_SIZE", "SLIPSTREAM_CROSS_SIZE", "SLIPSTREAM_SECRET_FILE"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
)


class JobFailed(RuntimeError):
    """A rank ended with an error, or the job took too long."""


def deliver(folder: str, rank: int, result: dict[str, Any]) -> None:
    """Called by a rank: leaves its result where `run_ranks` looks for it."""
    path = Path(folder) / f"{rank}.json"
    path.with_suffix(".part").write_text(json.dumps(result))
    path.with_suffix(".part").replace(path)


def run_ranks(
    script: Path, arguments: Sequence[str], ranks: int, *, transport: str, mpi: bool, limit: float
) -> list[dict[str, Any]]:
    """Runs ``script`` as ``ranks`` processes, each with ``--folder F``; returns their results by rank.

    ``transport`` is a value of SLIPSTREAM_TRANSPORT, ``mpi`` starts the ranks by mpirun, ``limit`` is in
    seconds. Raises JobFailed; no process is left in any case.
    """
    folder = Path(tempfile.mkdtemp(prefix="slipstream-benchmark-"))
    try:
        command = [sys.executable, str(script), *arguments, "--folder", str(folder)]
        processes = _start(command, ranks, _environment(folder, transport), mpi)
        try:
            _await(processes, time.monotonic() + limit)
        finally:
            _end(processes)
        return [_result(folder, rank) for rank in range(ranks)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment(folder: Path, transport: str) -> dict[str, str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in _PLACEMENT and not name.startswith(("OMPI_COMM_", "PMIX_", "SLURM_"))
    }
    environment.update(
        SLIPSTREAM_RENDEZVOUS=f"file://{folder}/slipstream",
        SLIPSTREAM_SECRET=secrets.token_hex(32),
        SLIPSTREAM_TRANSPORT=transport,
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",  # ranks share the cores; nothing here computes in parallel
    )
    return environment


def _start(
    command: list[str], ranks: int, environment: dict[str, str], mpi: bool
) -> list[subprocess.Popen[bytes]]:
    if mpi:
        # Unbound: a rank bound to one core would think that it shares it with all the others.
        launcher = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]
        if os.geteuid() == 0:
            launcher.append("--allow-run-as-root")
        return [_popen([*launcher, *command], environment)]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            variables = environment | {name: str(value) for name, value in place.items()}
            processes.append(_popen(command, variables))
    except BaseException:
        _end(processes)
        raise
    return processes


def _popen(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    # Standard output may be asked to hold JSON and nothing else: libraries that are talkative talk to stderr.
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=2)


def _await(processes: list[subprocess.Popen[bytes]], deadline: float) -> None:
    """Waits for all, and for as long as none has failed: the others would wait for a rank that is gone."""
    running = list(processes)
    while running:
        for process in list(running):
            try:
                code = process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                continue
            running.remove(process)
            if code != 0:
                raise JobFailed(f"rank {processes.index(process)} ended with code {code}")
        if running and time.monotonic() > deadline:
            raise JobFailed("the ranks took too long")


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _result(folder: Path, rank: int) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads((folder / f"{rank}.json").read_text())
    except FileNotFoundError:
        raise JobFailed(f"rank {rank} ended without a result") from None
    return result
