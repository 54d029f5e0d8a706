"""Ranks that call different operations, of which reducers take part in one: the error says what the others wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks
from reducer.test_job import environment, reducers

RANK = Path(__file__).with_name("differing_rank.py")


@pytest.mark.parametrize(
    ("count", "call", "named"),
    [
        (10, "gather", "gather("),
        (100_000, "receive", "recv(from rank "),
        pytest.param(10, "receive", "recv(from rank ", marks=pytest.mark.slow),
        pytest.param(100_000, "gather", "gather(", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("first", ["it", "others"])
def test_a_rank_in_another_operation_is_said_to_be_there(
    tmp_path: Path, count: int, call: str, named: str, first: str
) -> None:
    """``first``: who times out, rank 1, which calls something else, or the others."""
    limits = {r: {"SLIPSTREAM_TIMEOUT": "4" if (r == 1) == (first == "it") else "60"} for r in range(3)}
    with reducers(tmp_path, 1) as services:
        env = environment(services)
        texts = ranks.run(RANK, 3, transport="tcp", args=[str(count), call], env=env, envs=limits)
    print(*texts, sep="\n")
    reduction = f"all_reduce(float64, {count} elements, op=sum)"
    for text in texts:
        error = next(line for line in text.splitlines() if line.startswith("Timeout: "))
        assert f"; now it waits in {reduction if first == 'it' else named}" in error
        assert "is in no operation" not in text
