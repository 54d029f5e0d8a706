"""Whatever array people have: strided, scalar, empty, a buffer, a DLPack tensor; and ``out=`` that does not fit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("arrays_rank.py")
CASES = re.findall(r"^def (case_\w+)", SCRIPT.read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("case", CASES)
def test_on_two_ranks(case: str) -> None:
    for output in ranks.run(SCRIPT, 2, args=[case]):
        assert output.splitlines()[-1] == case


@pytest.mark.parametrize(("n", "transport"), [(1, "tcp"), (3, "mixed"), (4, "tcp")])
def test_all_cases(n: int, transport: str) -> None:
    for output in ranks.run(SCRIPT, n, transport=transport):
        assert [line for line in output.splitlines() if line.startswith("case_")] == CASES
