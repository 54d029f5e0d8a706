"""What a wait says that ends early, of an operation in which reducers take part."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks
from reducer.test_job import environment, reducers

RANK = Path(__file__).with_name("wait_rank.py")


@pytest.mark.parametrize("count", [100, 400_000])
def test_a_wait_that_is_over_names_the_operation_and_the_reducer_once(tmp_path: Path, count: int) -> None:
    with reducers(tmp_path, 1) as services:
        (text, _) = ranks.run(RANK, 2, transport="tcp", args=[str(count)], env=environment(services))
        operation = f"all_reduce(float64, {count} elements, op=sum)"
        assert text.count(operation) == 1, text
        assert text.count(f"reducer 127.0.0.1:{services[0].port}") == 1, text
        assert f"{operation} of the group of ranks 0, 1, called " in text
        assert count == 100 or " and rank 1 (host " in text or " for rank 1 (host " in text, text
