"""Random operations of several threads on several ranks, whatever happens to connections, links and processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from reducer.cluster import needs_lab
from soak.soak import TRANSPORTS, Soak, run

LONG = float(os.environ.get("SOAK_SECONDS", "1800"))  # of the slow test
SEED = int(os.environ.get("SOAK_SEED", "0"))  # of the slow test; 0: by the clock
NEEDS_LAB = ("lab", "reducers")
KINDS = {name: {"stop"} for name in TRANSPORTS}  # of disturbances, beside broken connections
KINDS["lab"] |= {"cut"}
KINDS["reducers"] |= {"cut", "kill a reducer", "freeze a reducer", "cut a reducer"}
EVERY = [pytest.param(name, marks=needs_lab if name in NEEDS_LAB else ()) for name in TRANSPORTS]

SOME = [
    pytest.param("shm"),
    *(pytest.param(name, marks=needs_lab) for name in NEEDS_LAB),
    *(pytest.param(name, marks=pytest.mark.slow) for name in TRANSPORTS if name not in ("shm", *NEEDS_LAB)),
]


def check(soak: Soak, folder: Path) -> None:
    found = run(soak, folder)
    print(soak.command(), found)
    assert found["operations"] > 20 * soak.ranks
    assert found["sessions"] >= 2
    assert soak.transport == "shm" or found["broken"] > 0
    assert set(found["disturbances"]) == KINDS[soak.transport]
    assert found["survived"] == [-1] or soak.kill


@pytest.mark.parametrize("transport", SOME)
def test_soak(transport: str, tmp_path: Path) -> None:
    check(Soak(transport, seed=1, seconds=12, session_seconds=1.5, break_every=0.2, kill=True), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(LONG + 600)
@pytest.mark.parametrize("transport", EVERY)
def test_long_soak(transport: str, tmp_path: Path) -> None:
    seed = SEED or time.time_ns() % 1_000_000
    ends, turn = time.monotonic() + LONG / len(TRANSPORTS), 0
    while (left := ends - time.monotonic()) > 0:
        folder = tmp_path / str(turn)
        folder.mkdir()
        soak = Soak(
            transport, seed=seed + turn, seconds=min(left, 60), threads=1 + turn % 3, kill=turn % 2 == 0
        )
        check(soak, folder)
        turn += 1
