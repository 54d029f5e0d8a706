"""Ranks of which one has MXNet's engine run an operation, and another one waits in its call: they meet all the same."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from comm import ranks
from reducer import service

if importlib.util.find_spec("mxnet") is None:
    pytest.skip("MXNet is not installed: make test-mxnet", allow_module_level=True)

SCRIPT = Path(__file__).parent / "mxnet_meeting_rank.py"


def run(mode: str, size: int, *more: str, **options: object) -> list[str]:
    return ranks.run(SCRIPT, size, args=[mode, *more], new=True, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "mode",
    ["shared_memory", "kinds_of_arrays", "forms", "kinds_of_operations", "order", "engines", "interrupted"],
)
@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "mixed")])
def test_ranks(mode: str, size: int, transport: str) -> None:
    outputs = run(mode, size, transport=transport)
    assert all(output.endswith("done\n") for output in outputs), outputs


@pytest.mark.parametrize("size", [2, 3])
def test_a_turn_that_is_broken_off_ends_the_job_on_all_ranks(size: int) -> None:
    for output in run("interrupted_turn", size):
        assert "rank 0 was interrupted inside allgather" in ranks.marked("raised ", output)


def test_a_trainer_takes_the_reducers_over(tmp_path: Path) -> None:
    with service.started(tmp_path) as one:
        settings = {
            "SLIPSTREAM_REDUCERS": f"127.0.0.1:{one.port}",
            "SLIPSTREAM_REDUCER_SECRET": service.SECRET.hex(),
        }
        outputs = run(
            "reducers",
            3,
            transport="tcp",
            env=settings,
            envs={
                r: {"SLIPSTREAM_HOST_ID": f"pretended-{r}", "SLIPSTREAM_INTERFACE": "lo"} for r in range(3)
            },
        )
    assert all(output.endswith("done\n") for output in outputs), outputs


@pytest.mark.parametrize("event", ["the program ended", "the process left the job", "the process forked"])
def test_what_waits_for_the_end_of_operations_tells_of_those_that_failed(event: str) -> None:
    """The other rank never calls this rank's last operation, whose result nobody looks at."""
    end = event.removeprefix("the program ").removeprefix("the process ")
    wanted = f"1 operation failed that was under way when {event}. The last: Timeout: "
    with ranks.started(
        SCRIPT, 2, args=["never_called", end], new=True, env={"SLIPSTREAM_TIMEOUT": "4"}
    ) as both:
        for rank in both:
            code = rank.process.wait(60)
            told = [line for line in rank.text().splitlines() if wanted in line]
            assert len(told) == 1, rank.text()
            assert "allreduce 'mine'" in told[0]
            if end == "forked":  # MXNet ends a process that forks with an error that was not raised
                assert code != 0
                assert "dmlc::Error" in rank.text()
            else:
                assert code == 0
