"""Ranks for the tests of the faces: processes that stay, so that PyTorch is imported once and not in every
test.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faces.persistent import Processes, named

WORKER = Path(__file__).with_name("rank_process.py")


class Ranks:
    """N processes, each a rank of one job, that run functions of the test files together."""

    def __init__(self, size: int, folder: Path, hosts: bool = False) -> None:
        """``hosts``: each rank pretends to be a host of its own."""
        self.size = size
        secret = secrets.token_hex(32)

        def job(rank: int, generation: int) -> dict[str, str]:
            return {
                "SLIPSTREAM_RENDEZVOUS": f"file://{folder}/meeting-{size}-{hosts}-{generation}",
                "SLIPSTREAM_SECRET": secret,
                "SLIPSTREAM_SIZE": str(size),
                "SLIPSTREAM_RANK": str(rank),
                **({"SLIPSTREAM_HOST_ID": f"host-{rank}"} if hosts else {}),
            }

        outputs = folder / f"outputs-{size}-{hosts}"
        outputs.mkdir()
        self._processes = Processes(WORKER, outputs, job)
        self.stop = self._processes.stop

    def __call__(self, check: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Runs ``check(*arguments)`` on all ranks; returns their results, or fails with their tracebacks."""
        return self._processes.ask([(*named(check), arguments)] * self.size)


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


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """A job of three ranks, each on a host of its own, as far as they know."""
    pytest.importorskip("torch")
    ranks = Ranks(3, tmp_path_factory.mktemp("hosts"), hosts=True)
    yield ranks
    ranks.stop()
