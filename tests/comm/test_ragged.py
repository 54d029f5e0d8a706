"""Operations in which the ranks bring different sizes: short blocks travel with their sizes, long ones after them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from comm import ranks
from comm.sessions import Rank
from slipstream import _core
from slipstream.base.dtypes import DType
from slipstream.base.errors import SlipstreamError
from slipstream.plan.steps import Kind, Space

SCRIPT = Path(__file__).with_name("ragged_rank.py")


@pytest.mark.parametrize("transport", ["tcp", "shm", "mixed"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_values_are_right_at_every_size(n: int, transport: str) -> None:
    ranks.run(SCRIPT, n, transport=transport, args=["values"])


@pytest.mark.parametrize("n", [3, 6])
def test_long_blocks_travel_in_rounds_between_hosts(n: int) -> None:
    hosts = {
        rank: {"SLIPSTREAM_HOST_ID": f"pretended-{rank}", "SLIPSTREAM_INTERFACE": "lo"} for rank in range(n)
    }
    ranks.run(SCRIPT, n, transport="tcp", args=["rounds"], envs=hosts)


def test_more_ranks_than_send_to_each_other_at_once() -> None:
    ranks.run(SCRIPT, 17, args=["values"])


@pytest.mark.parametrize("n", [2, 3])
def test_what_all_ranks_find_wrong_ends_nothing(n: int) -> None:
    ranks.run(SCRIPT, n, args=["errors"])


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_memory_that_earlier_operations_use(transport: str) -> None:
    ranks.run(SCRIPT, 3, transport=transport, args=["memory"])


@pytest.mark.parametrize("elements", ["4", "60000"])
@pytest.mark.parametrize("operation", ["gather", "scatter"])
def test_ranks_that_name_different_roots_get_no_result(operation: str, elements: str) -> None:
    ranks.run(SCRIPT, 2, args=["roots", operation, elements])


def _request(group: _core.Group, room: int, chunk: int = 1 << 20) -> _core.Request:
    steps = np.array([Kind.COPY, -1, 0, 1, Space.IN, Space.OUT, 0], dtype=np.int32)
    plan = _core.Plan.compile(0, 1, 1, steps, np.empty(0, dtype=np.int32))
    return _core.Request(
        group=group,
        plan=plan,
        operation="all_gather/with_sizes",
        dtype=DType.U8,
        chunk_bytes=chunk,
        out_offsets=[0, room],
        ragged=True,
    )


def test_messages_that_do_not_fit_are_refused() -> None:
    rank = Rank(0, 1)
    rank.start([rank], "shm")
    try:
        for room, chunk in ((16385, 1 << 20), (1000, 999)):
            with pytest.raises((SlipstreamError, ValueError), match="must fit into one message"):
                _request(rank.group, room, chunk)
        request = _request(rank.group, 1000)
        told = rank.session.tell(request, [5, 6], 0, [0], True)
        assert told.heads() == [[5, 6]]
        assert told.whole
        with pytest.raises((SlipstreamError, ValueError), match="too long"):
            rank.session.tell(request, [5, 6], 0, [1000 - 23], True)
        with pytest.raises((SlipstreamError, ValueError), match="longer than its message"):
            told.join(0, [1000])
    finally:
        rank.session.close()
