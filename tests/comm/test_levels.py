"""Ranks with processors of different kinds, as their SLIPSTREAM_CPU has them be, get the same bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("levels_rank.py")


def newest() -> str:
    """The level of this processor: nothing else may have asked for a lower one."""
    ask = "from slipstream import _core; print(_core.cpu_level())"
    return subprocess.check_output([sys.executable, "-c", ask], text=True, env={}).strip()


@pytest.mark.parametrize("lower", ["baseline", "avx2"])
def test_floats_of_16_bits_have_the_same_bits_on_every_level(lower: str) -> None:
    if newest() == lower or newest() not in ("avx2", "avx512"):
        pytest.skip(f"this processor has no level above {lower}")
    levels = {0: {"SLIPSTREAM_CPU": lower}, 1: {"SLIPSTREAM_CPU": newest()}}
    texts = ranks.run(SCRIPT, 2, args=["f16", "bf16"], envs=levels, new=True)
    assert texts == [f"{lower} []\n", f"{newest()} []\n"]
