"""Names of reductions."""

from __future__ import annotations

import pytest

from slipstream.base.dtypes import Op, as_op


@pytest.mark.parametrize("op", list(Op))
def test_a_reduction_has_a_name(op: Op) -> None:
    assert as_op(op) is as_op(op.name.lower()) is as_op(int(op)) is op


@pytest.mark.parametrize("wrong", ["", "mean", 99, None, 1.5])
def test_what_is_no_reduction_is_explained(wrong: object) -> None:
    with pytest.raises(ValueError, match="is no reduction: take one of sum, prod, min, max, avg"):
        as_op(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["mean", "average"])
def test_the_mean_is_called_avg(name: str) -> None:
    with pytest.raises(ValueError, match=r"max, avg, .*; did you mean avg\?$"):
        as_op(name)
