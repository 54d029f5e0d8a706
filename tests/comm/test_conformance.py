"""Every collective, dtype and op on 1 to 8 ranks over tcp, shm and both, against NumPy."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("conformance_rank.py")


@pytest.mark.parametrize(
    ("n", "transport"),
    [
        *product([1, 2, 3, 4], ranks.TRANSPORTS),
        (8, "tcp"),
        (8, "shm"),
        pytest.param(8, "mixed", marks=pytest.mark.slow),
    ],
)
def test_collectives_equal_numpy(n: int, transport: str) -> None:
    ranks.run(SCRIPT, n, transport=transport, timeout=280)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
@pytest.mark.parametrize("n", range(1, 9))
def test_collectives_equal_numpy_at_full_size(n: int, transport: str) -> None:
    ranks.run(SCRIPT, n, transport=transport, args=["--full"], timeout=1800)
