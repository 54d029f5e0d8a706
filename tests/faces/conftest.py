"""Ranks for the tests of the faces: processes that stay, so that PyTorch is imported once and not in every
test.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faces.rank_jobs import Ranks


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
