"""Calls of PyTorch's faces that an exception of a signal handler breaks off."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("interrupted_rank.py")


@pytest.mark.parametrize(
    ("face", "transport", "number"),
    [
        ("hvd", "tcp", signal.SIGALRM),
        ("hvd", "shm", signal.SIGINT),
        ("c10d", "tcp", signal.SIGTERM),
        ("c10d", "shm", signal.SIGALRM),
        ("optimizer", "shm", signal.SIGALRM),
        ("join", "shm", signal.SIGALRM),
    ],
)
def test_an_interrupted_call_harms_neither_memory_nor_values(
    tmp_path: Path, face: str, transport: str, number: signal.Signals
) -> None:
    pytest.importorskip("torch")
    ranks.run(SCRIPT, 2, transport=transport, args=[str(tmp_path), str(int(number)), face])
