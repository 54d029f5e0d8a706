"""Every collective, dtype and op on 1 to 8 ranks over tcp, shm and both, against NumPy."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("conformance_rank.py")


@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_collectives_equal_numpy(n: int, transport: str) -> None:
    ranks.run(SCRIPT, n, transport=transport, timeout=280)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
@pytest.mark.parametrize("n", range(1, 9))
def test_collectives_equal_numpy_at_full_size(n: int, transport: str) -> None:
    ranks.run(SCRIPT, n, transport=transport, args=["--full"], timeout=1800)
