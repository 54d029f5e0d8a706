"""Jobs of more hosts than a machine has cores, each rank a process in the network namespace of its host."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import slipstream.lab
from slipstream.lab import Lab

SOURCE = Path(slipstream.lab.__file__).parents[2]
RANK = Path(__file__).with_name("many_hosts_rank.py")
LIMIT = 240  # seconds; two cores start 64 interpreters one after another

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="a lab needs root and iproute2"
)


def run(hosts: int, ranks: int, folder: Path) -> None:
    """Runs the ranks, those of a host side by side, and checks that all of them end well."""
    local = -(-ranks // hosts)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")])),
        "SLIPSTREAM_RENDEZVOUS": f"file://{folder}/rendezvous",
        "SLIPSTREAM_SECRET": secrets.token_hex(16),
        "SLIPSTREAM_SIZE": str(ranks),
        "SLIPSTREAM_START_TIMEOUT": str(LIMIT),
        "SLIPSTREAM_HEARTBEAT": "60",
        "OMP_NUM_THREADS": "1",
    }
    started: list[subprocess.Popen[bytes]] = []
    outputs = [folder / f"rank{rank}" for rank in range(ranks)]
    with Lab(hosts) as lab:
        for rank, output in enumerate(outputs):
            own = {**environment, "SLIPSTREAM_RANK": str(rank)}
            with output.open("wb") as file:
                command = [sys.executable, str(RANK)]
                host = lab.hosts[rank // local]
                started.append(lab.popen(host, command, env=own, stdout=file, stderr=subprocess.STDOUT))
        codes = [process.wait(LIMIT) for process in started]
    texts = [
        f"rank {r} (exit {c})\n{o.read_text()}"
        for r, (c, o) in enumerate(zip(codes, outputs, strict=True))
        if c
    ]
    assert not texts, "\n".join(texts[:4])


@pytest.mark.parametrize(
    ("hosts", "ranks"),
    [
        (33, 33),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((24, 24), (48, 48), (64, 64), (14, 40))),
    ],
)
def test_many_hosts(hosts: int, ranks: int, tmp_path: Path) -> None:
    """40 ranks at 3 a host: one host has a single rank, so nothing can be done host by host."""
    run(hosts, ranks, tmp_path)


@pytest.mark.slow
def test_a_launcher_starts_ranks_on_64_hosts() -> None:
    """An agent on each host, and a store that 64 hosts reach: the ranks check every collective, and all of it ends."""
    command = [sys.executable, "-m", "slipstream", "run", "-np", "64", "--", sys.executable, str(RANK)]
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    with Lab(64) as lab:
        lab.run("h1", command, env={"PYTHONPATH": path, "SLIPSTREAM_HEARTBEAT": "60"}, timeout=LIMIT)
