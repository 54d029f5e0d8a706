"""`slipstream.link_statistics()` tells of every link by which transport it goes and what it has carried."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("statistics_rank.py")


@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
def test_links_of_every_transport_are_told(transport: str) -> None:
    ranks.run(SCRIPT, 3, transport=transport, args=[transport])
