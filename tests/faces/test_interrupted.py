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


@pytest.mark.parametrize(("face", "size"), [("c10d", 2), ("hvd", 1)])
def test_a_result_is_copied_back_wherever_its_call_was_broken_off(
    tmp_path: Path, face: str, size: int
) -> None:
    pytest.importorskip("torch")
    ranks.run(SCRIPT.with_name("copy_back_rank.py"), size, args=[face, str(tmp_path)], timeout=200)
