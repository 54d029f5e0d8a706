"""How the launcher ends what is left of a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from launch.fake_agents import FakeJob
from slipstream.launch import agent_pool


@pytest.fixture
def job() -> Iterator[FakeJob]:
    made = FakeJob()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("before", "meanwhile", "swept"), [(0, 0, True), (1, 0, True), (0, 2, False), (1, 1, False)]
)
def test_a_second_interrupt_leaves_other_hosts_as_they_are(
    job: FakeJob, monkeypatch: pytest.MonkeyPatch, before: int, meanwhile: int, swept: bool
) -> None:
    """Also one that comes while the launcher waits for its agents."""
    sweeps: list[Any] = []
    monkeypatch.setattr(agent_pool, "sweep_up", lambda agents, _: sweeps.append(agents))
    monkeypatch.setattr(agent_pool, "kill_descendants", lambda _: None)
    job.ending.interrupts = before

    def wait(_: float) -> int:
        job.ending.interrupts = before + meanwhile
        return 255

    for process in job.processes:
        process.wait = wait  # type: ignore[method-assign]
    job.ending.close()
    assert bool(sweeps) is swept
