"""Tensors of as many elements and another shape are not mixed, as Horovod has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

pytest.importorskip("torch")

from slipstream.faces.torch.reduction_collectives import packed_label

SCRIPT = Path(__file__).with_name("mismatch_rank.py")


@pytest.mark.parametrize("how", ["allreduce", "broadcast", "reducescatter", "grouped"])
def test_ranks_that_differ_in_shape_read_both(how: str) -> None:
    shown = ("[(3,), (5,)]", "[(5,), (3,)]") if how == "grouped" else ("(3, 2)", "(2, 3)")
    for text in ranks.run(SCRIPT, 2, args=[how]):
        assert all(one in text for one in shown), text


def test_long_lists_of_shapes_differ_in_their_digest() -> None:
    one, other = ([(1000 + i, 7) for i in range(100)] for _ in range(2))
    other[-1] = (7, 1099)
    assert packed_label("a", one) == packed_label("a", list(one))
    assert packed_label("a", one) != packed_label("a", other)
    assert len(packed_label("a", one)) < 300
