"""Groups that a signal's handler keeps a rank from making."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("group_rank.py")


@pytest.mark.parametrize("which", ["world", "own"])
def test_a_group_that_was_interrupted_may_be_made_again(which: str) -> None:
    ranks.run(SCRIPT, 2, args=[which], timeout=60, env={"SLIPSTREAM_TIMEOUT": "10"})
