"""The C table, by ctypes from several processes, and by a program in C."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from comm import c_table, ranks

FOLDER = Path(__file__).parent
HEADER = FOLDER.parents[1] / "native" / "capi" / "slipstream.h"


@pytest.mark.parametrize(("n", "transport"), [(1, "shm"), (2, "shm"), (3, "tcp"), (3, "mixed")])
def test_every_collective_in_every_way(n: int, transport: str) -> None:
    ranks.run(FOLDER / "c_api_rank.py", n, transport=transport)
