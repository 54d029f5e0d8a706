"""Ranks with TensorFlow: processes that stay, since its import takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from faces.rank_jobs import Ranks

WORKER = Path(__file__).with_name("rank_process.py")
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
NEGOTIATED = QUIET | {"SLIPSTREAM_TENSORFLOW_GRAPHS": "negotiated"}


@pytest.fixture(scope="session")
def tensorflow_jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Ranks]]:
    """Jobs by size, each started when first used."""
    folder = tmp_path_factory.mktemp("tensorflow")
    found = {size: Ranks(size, folder, worker=WORKER, environment=QUIET) for size in (2, 3)}
    yield found
    for ranks in found.values():
        ranks.stop()


@pytest.fixture(scope="session")
def negotiated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """A job of two ranks whose operations in graphs go through Python."""
    folder = tmp_path_factory.mktemp("tensorflow-negotiated")
    ranks = Ranks(2, folder, worker=WORKER, environment=NEGOTIATED)
    yield ranks
    ranks.stop()


@pytest.fixture(params=[2, 3])
def ranks(tensorflow_jobs: dict[int, Ranks], request: pytest.FixtureRequest) -> Ranks:
    """A job of two ranks, and one of three."""
    return tensorflow_jobs[request.param]


@pytest.fixture
def two(tensorflow_jobs: dict[int, Ranks]) -> Ranks:
    """A job of two ranks."""
    return tensorflow_jobs[2]


@pytest.fixture
def three(tensorflow_jobs: dict[int, Ranks]) -> Ranks:
    """A job of three ranks."""
    return tensorflow_jobs[3]


@pytest.fixture
def short_lived(tmp_path: Path) -> Iterator[Ranks]:
    """Ranks for a check that ends the job."""
    ranks = Ranks(2, tmp_path, worker=WORKER, environment=QUIET)
    yield ranks
    ranks.stop()
