"""slipstream.jax on several ranks, against NumPy."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

pytest.importorskip("jax")
FOLDER = Path(__file__).parent


@pytest.mark.parametrize(("n", "transport"), [(1, "shm"), (2, "shm"), (3, "shm"), (2, "tcp")])
def test_operations(n: int, transport: str) -> None:
    ranks.run(FOLDER / "operations_rank.py", n, transport=transport, new=True)
