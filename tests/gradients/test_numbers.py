"""By which numbers ranks know their exchanges, where one has joined before it made them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.base.dtypes import DType, Op, to_numpy
from slipstream.gradients.numbers import Numbers
from slipstream.gradients.reductions import without_effect


class Exchange:
    def __init__(self, like: str = "a") -> None:
        self.like = like
        self.number = 0
        self.stands_in_no_more: Any = None

    def take_part(self, wish: bool) -> None:
        raise AssertionError("nobody steps here")

    def same(self) -> dict[str, Any]:
        return {"like": self.like, "parameters": [self.like, "b"]}

    def told(self) -> dict[str, Any]:
        return {"same": self.same()}

    def numbered(self, number: int) -> None:
        self.number = number

    def take_over(self, stand_in: Any) -> None:
        self.stands_in_no_more = stand_in

    def rest(self) -> None:
        pass


def behind(*stand_ins: str) -> tuple[Numbers, list[Exchange]]:
    """Those of a rank that has joined before it made any, with stand-ins of 1, 2, ..."""
    numbers, made = Numbers(), [Exchange(like) for like in stand_ins]
    for number, one in enumerate(made, 1):
        numbers.stand_in(number, one)
    return numbers, made


def test_places_are_numbers() -> None:
    numbers, made = Numbers(), [Exchange() for _ in range(3)]
    for one in made:
        numbers.add(one)
    assert [numbers.of(one) for one in made] == [one.number for one in made] == [1, 2, 3]
    assert numbers.find(2) is made[1]
    assert numbers.settle(made[1], 2) == ""
    assert numbers.settle(made[1], 3) == "steps optimizer 2, and another rank optimizer 3"


def test_one_that_nobody_holds_is_gone() -> None:
    numbers, one = Numbers(), Exchange()
    numbers.add(one)
    del one
    assert numbers.find(1) is None
    assert numbers.alike(Exchange().same()) == []


def test_an_exchange_takes_the_place_of_its_stand_in() -> None:
    numbers, (_, second) = behind("a", "b")
    mine = Exchange("b")
    numbers.add(mine)
    assert (numbers.of(mine), numbers.find(2)) == (0, second)
    assert numbers.settle(mine, 2) == ""
    assert (numbers.of(mine), numbers.find(2), mine.stands_in_no_more) == (2, mine, second)


def test_an_exchange_that_is_not_like_its_stand_in_is_refused() -> None:
    numbers, _ = behind("a")
    mine = Exchange("b")
    numbers.add(mine)
    assert numbers.settle(mine, 1) == (
        "steps an optimizer that is not like optimizer 1 of the other ranks (like: b here, a there)"
    )


def test_two_exchanges_never_have_one_number() -> None:
    numbers, _ = behind("a")
    first, second = Exchange(), Exchange()
    for one in (first, second):
        numbers.add(one)
    assert numbers.settle(first, 1) == ""
    assert numbers.settle(second, 1) == "steps an optimizer that is not optimizer 1, which other ranks step"


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ([], [3, 4]),  # other ranks have dropped theirs: these are new
        ([1], [1, 3]),
        ([1, 2], [1, 2]),
        ([2, 5], [2, 5]),
    ],
)
def test_a_rank_chooses_among_those_that_are_there(others: list[int], chosen: list[int]) -> None:
    numbers, _ = behind("a", "a")
    mine = [Exchange(), Exchange("other"), Exchange()]
    for one in mine:
        numbers.add(one)
    assert [numbers.choose(one, others) for one in (mine[0], mine[2])] == chosen


def test_a_rank_that_has_made_fewer_learns_the_next_number() -> None:
    numbers, one = Numbers(), Exchange()
    numbers.all_have_joined(4)
    numbers.add(one)
    assert numbers.of(one) == 0
    assert numbers.choose(one, []) == 5
    even, another = Numbers(), Exchange()
    even.all_have_joined(0)
    even.add(another)
    assert even.of(another) == 1


@pytest.mark.parametrize("op", [Op.SUM, Op.AVG, Op.MIN, Op.MAX, Op.PROD])
@pytest.mark.parametrize("dtype", [one for one in DType if one is not DType.Q8])
def test_what_changes_nothing(dtype: DType, op: Op) -> None:
    name = to_numpy(dtype)
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        pytest.importorskip("ml_dtypes")
    kind = np.dtype(name)
    if kind.kind == "c" and op in (Op.MIN, Op.MAX):
        pytest.skip("complex numbers have no order")
    neutral = without_effect(dtype, op).view(kind)
    by = {Op.MIN: np.minimum, Op.MAX: np.maximum, Op.PROD: np.multiply}.get(op, np.add)
    for number in (0, 1, 3, *(() if kind.kind in "bu" else (-3,))):
        given = np.array([number]).astype(kind)
        assert by(given, neutral) == given
