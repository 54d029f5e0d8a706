"""The workers' session fails while operations wait for reducers, which know nothing of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks
from reducer.test_job import environment, reducers

RANK = Path(__file__).with_name("abort_rank.py")


@pytest.mark.parametrize("count", [100, 400_000])
def test_an_abort_ends_operations_that_wait_for_reducers(tmp_path: Path, count: int) -> None:
    folder = tmp_path / "done"
    folder.mkdir()
    with reducers(tmp_path, 2) as services:
        texts = ranks.run(
            RANK, 3, transport="tcp", args=[str(count), str(folder)], env=environment(services), timeout=60
        )
        for text in (texts[0], texts[2]):
            errors = [line for line in text.splitlines() if line.startswith("error: ")]
            assert len(errors) == 6, text
            assert all("enough" in line for line in errors), text
            assert not errors[0].startswith("error: the job has failed before"), text
