"""A reducer is lost while a part of an operation is under way, or has not begun."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from comm import ranks
from comm.test_hierarchy import on_hosts
from reducer import service
from reducer.service import wait_for
from reducer.test_job import environment, reducers

RANK = Path(__file__).with_name("lost_parts_rank.py")


@pytest.mark.parametrize("wire", ["exact", "bf16"])
def test_all_that_was_lost_of_data_in_a_wire_type_is_there(tmp_path: Path, wire: str) -> None:
    with (
        reducers(tmp_path, 2) as services,
        ranks.started(RANK, 2, transport="tcp", args=["wire", wire], env=environment(services)) as job,
    ):
        wait_for(lambda: all("used" in rank.text() for rank in job), "work")
        services[0].process.kill()
        for rank in job:
            assert rank.process.wait(service.LIMIT) == 0, rank.text()
            assert "right" in rank.text()


def test_a_rank_that_is_late_for_a_session_that_was_left(tmp_path: Path) -> None:
    env = {"SLIPSTREAM_REDUCER_HEARTBEAT": "0.5", "SLIPSTREAM_TIMEOUT": "40", "MALLOC_PERTURB_": "165"}
    with (
        reducers(tmp_path, 2) as services,
        ranks.started(
            RANK,
            4,
            transport="mixed",
            args=["late", str(tmp_path)],
            env=environment(services) | env,
            envs=on_hosts(2, 2),
            new=True,
        ) as job,
    ):
        wait_for(lambda: all("used" in rank.text() for rank in job), "work")
        services[0].process.send_signal(signal.SIGSTOP)
        (tmp_path / "go").touch()
        try:
            for rank in job:
                assert rank.process.wait(service.LIMIT) == 0, rank.text()
                assert "right" in rank.text()
        finally:
            services[0].process.send_signal(signal.SIGCONT)
