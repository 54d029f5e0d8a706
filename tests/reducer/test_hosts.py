"""Jobs with reducers whose ranks share hosts, in any numbers: right values, whatever becomes of a reducer or a rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks
from comm.test_hierarchy import on_hosts
from reducer import service
from reducer.service import wait_for
from reducer.test_job import environment, lose_one, reducers

RANK = Path(__file__).with_name("hosts_rank.py")


def run(folder: Path, mode: str, local_sizes: tuple[int, ...], k: int, **env: str) -> list[str]:
    with reducers(folder, k) as services:
        environ = environment(services) | env
        envs = on_hosts(*local_sizes)
        return ranks.run(RANK, len(envs), transport="mixed", args=[mode], env=environ, envs=envs)


@pytest.mark.parametrize(("local_sizes", "k"), [((2, 2), 2), ((3, 1), 1), ((1, 2, 3), 2)])
def test_values(tmp_path: Path, local_sizes: tuple[int, ...], k: int) -> None:
    assert run(tmp_path, "values", local_sizes, k) == [""] * sum(local_sizes)


@pytest.mark.parametrize(("local_sizes", "k"), [((2, 2), 1), ((4, 2), 3), ((2, 1, 1), 2)])
def test_all_ranks_have_the_same_bits(tmp_path: Path, local_sizes: tuple[int, ...], k: int) -> None:
    run(tmp_path, "rounds", local_sizes, k)


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize(("local_sizes", "k"), [pytest.param((2, 2), 2, marks=pytest.mark.slow), ((1, 3), 1)])
def test_a_reducer_is_lost_and_comes_back(
    tmp_path: Path, local_sizes: tuple[int, ...], k: int, how: str
) -> None:
    envs = on_hosts(*local_sizes)
    lose_one(tmp_path, RANK, ["loss"], len(envs), k, 0, how, transport="mixed", envs=envs)


def test_ranks_that_differ_are_told(tmp_path: Path) -> None:
    for text in run(tmp_path, "mismatch", (2, 2), 1, SLIPSTREAM_TIMEOUT="20"):
        assert "300000 elements" in text, text
        assert "300001 elements" in text, text


@pytest.mark.parametrize("local_sizes", [(2, 2), (2, 1, 1)])
def test_a_lost_rank_is_named_and_the_others_go_on(tmp_path: Path, local_sizes: tuple[int, ...]) -> None:
    envs = on_hosts(*local_sizes)
    with (
        reducers(tmp_path, 2) as services,
        ranks.started(
            RANK,
            len(envs),
            transport="mixed",
            args=["shrink"],
            env=environment(services) | {"SLIPSTREAM_LOG": "info"},
            envs=envs,
        ) as job,
    ):
        wait_for(lambda: all("running" in rank.text() for rank in job), "work")
        *others, victim = job
        victim.process.kill()
        for rank in others:
            assert rank.process.wait(service.LIMIT) == 0, rank.text()
            assert f"lost {victim.number}" in rank.text()
            assert "went on" in rank.text()
