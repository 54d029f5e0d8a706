"""A prescale is applied piece by piece: right values by every algorithm, and no copy of the whole input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

import slipstream
from comm import ranks
from slipstream.comm.collectives.signatures import as_scales
from slipstream.plan.registry import algorithms

RANK = Path(__file__).with_name("prescale_rank.py")
BESIDE = Path(__file__).with_name("prescale_beside_rank.py")
MOST = 64 << 20  # bytes more than without a prescale; the input has 192 MiB
FIRST = {"shm": "direct", "tcp": "ring", "mixed": "hierarchical"}


@pytest.mark.parametrize(("transport", "n"), [("shm", 3), ("tcp", 3), ("mixed", 4)])
def test_a_prescale_copies_no_whole_input(transport: str, n: int) -> None:
    first = FIRST[transport]
    others = [name for name in algorithms("all_reduce") if n == 4 or not name.startswith("hierarchical")]
    texts = ranks.run(RANK, n, transport=transport, args=[first, *others])
    assert all(int(text) < MOST for text in texts), texts


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_prescale_stops_nobody_else(transport: str) -> None:
    for text in ranks.run(BESIDE, 2, transport=transport):
        found = json.loads(text)
        # Processor time: other programs do not count. Piece by piece it takes a twentieth and less.
        assert found["alone"] < found["whole"] / 3, found
        # A stopped engine does one or two each time. So does a rank whose core other programs have for long.
        assert max(found["counts"]) >= 10, found


@pytest.mark.parametrize("scales", [("2", 1.0), (1.0, None), (1.0, [2])])
def test_what_is_no_number_is_named(scales: tuple[Any, Any]) -> None:
    wrong = "prescale" if scales[0] == "2" else "postscale"
    with pytest.raises(TypeError, match=f"^{wrong} must be one number, not (str|NoneType|list)$"):
        as_scales(*scales)
    if wrong == "prescale":
        slipstream.init()
        try:
            with pytest.raises(TypeError, match=r"^prescale must be one number, not str$"):
                slipstream.all_reduce(numpy.ones(3), prescale="2")  # type: ignore[arg-type]
        finally:
            slipstream.shutdown()
