"""Sums within hosts first, between hosts that have any numbers of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

RANK = Path(__file__).with_name("hierarchy_rank.py")


def on_hosts(*local_sizes: int) -> dict[int, dict[str, str]]:
    """Environments of ranks that pretend to be on so many hosts, dealt to them in turns."""
    turns = sorted((turn, host) for host, local in enumerate(local_sizes) for turn in range(local))
    return {
        rank: {"SLIPSTREAM_HOST_ID": f"pretended-{host}", "SLIPSTREAM_INTERFACE": "lo"}
        for rank, (_, host) in enumerate(turns)
    }


@pytest.mark.parametrize("local_sizes", [(2, 2), (3, 1), (3, 2, 1), (1, 4), (5,)])
def test_values(local_sizes: tuple[int, ...]) -> None:
    ranks.run(RANK, sum(local_sizes), transport="mixed", envs=on_hosts(*local_sizes), args=["values"])


@pytest.mark.parametrize(
    ("setting", "plan"), [("auto", "hierarchical"), ("on", "hierarchical"), ("off", "ring")]
)
def test_the_setting_chooses(setting: str, plan: str) -> None:
    env = {"SLIPSTREAM_HIERARCHY": setting}
    for text in ranks.run(RANK, 3, transport="mixed", envs=on_hosts(2, 1), env=env, args=["plan"]):
        assert ranks.marked("plan ", text) == f"all_reduce/{plan}"


def test_ranks_that_differ_do_not_start() -> None:
    envs = on_hosts(2, 1)
    envs[1]["SLIPSTREAM_HIERARCHY"] = "off"
    with ranks.started(RANK, 3, transport="mixed", envs=envs, args=["plan"]) as started:
        for rank in started:
            assert rank.process.wait(timeout=60) == 1
            assert (
                "SLIPSTREAM_HIERARCHY differs between ranks: rank 0 has auto, rank 1 has off" in rank.text()
            )
