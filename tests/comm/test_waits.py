"""A wait that ends before its operation names the operation, and the ranks that it waits for."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("wait_rank.py")


@pytest.mark.parametrize(("face", "dtype"), [("numpy", "float64"), ("torch", "float32")])
def test_a_wait_that_is_over_says_who_is_missing(face: str, dtype: str) -> None:
    envs = None
    if face == "torch":
        pytest.importorskip("torch")
        master = {**ranks.meeting_place("port", Path()), "WORLD_SIZE": "2"}
        envs = {r: {**master, "RANK": str(r)} for r in range(2)}
    (text, _) = ranks.run(SCRIPT, 2, args=[face], envs=envs)
    assert f"all_reduce({dtype}, 7 elements, op=sum) #" in text
    assert " for rank 1 (host " in text
