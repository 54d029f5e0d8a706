"""Arguments of a wrong type, and groups that cannot be: the error names the argument, and the job goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comm import ranks

RANK = Path(__file__).with_name("mistakes_rank.py")
TUPLE, LIST = (f"must be a writable array, tensor or buffer, not {kind}" for kind in ("tuple", "list"))
WANTED = {
    "out": f"TypeError: out {LIST}",
    "out of a scalar": "TypeError: out must be a writable array, tensor or buffer, not float64",
    "out of all_gather": f"TypeError: out {LIST}",
    "out of gather": f"TypeError: out {LIST}",
    "out of broadcast": f"TypeError: out {TUPLE}",
    "out of reduce": f"TypeError: out {LIST}",
    "out of reduce_scatter": f"TypeError: out {LIST}",
    "out of scatter": f"TypeError: out {LIST}",
    "out of all_to_all": f"TypeError: out {LIST}",
    "out on a device": "TypeError: out is no array, and cannot be read as one: it is on a device",
    "x of recv": f"TypeError: x {LIST}",
    "shape": f"TypeError: x {TUPLE}",
    "group": "TypeError: group must be a slipstream.Group, not list: slipstream.Group([0, 1])",
    "empty group": "TypeError: group must be a slipstream.Group, not list: slipstream.Group([])",
    "group of barrier": "TypeError: group must be a slipstream.Group, not int",
    "name": "TypeError: name must be a string, not int",
    **{
        f"name of {operation}": "TypeError: name must be a string, not int"
        for operation in ("all_gather", "gather", "scatter", "all_to_all")
    },
    "root": "TypeError: root must be an int, not str",
    "root of gather": "TypeError: root must be an int, not str",
    "array as root": "TypeError: root must be an int, not an array of shape (2,)",
    "group of empty": "TypeError: group must be a slipstream.Group, not ndarray",
    "job": "TypeError: job must be a slipstream job, not str",
    "blocks": "TypeError: blocks must be an array of blocks, of slipstream.quantize, not str",
    "dtype of blocks": "TypeError: blocks must be an array of blocks, of slipstream.quantize, not float64",
    "dst": "TypeError: dst must be an int, not str",
    "tag": "TypeError: tag must be an int, not str",
    "number": "TypeError: ranks must be a sequence of ints, not int",
    "texts": "TypeError: the ranks of a Group must be ints, not str",
    "floats": "TypeError: the ranks of a Group must be ints, not float",
    "absent": "ValueError: rank 5 of Group([0, 5]) does not exist: the job has ranks 0 to 1",
    "twice": "ValueError: rank 0 is named twice in Group([0, 0, 1])",
    "wait": "TypeError: timeout must be a number of seconds, not bool",
}
NOT_IN = (
    "ValueError: rank {} is not in Group({}): only members make a group (`if slipstream.rank() in ranks`)"
)


@pytest.fixture(scope="module")
def said() -> list[dict[str, str]]:
    return [json.loads(ranks.marked("errors: ", text)) for text in ranks.run(RANK, 2)]


@pytest.mark.parametrize("what", WANTED)
def test_a_wrong_argument_is_named(said: list[dict[str, str]], what: str) -> None:
    assert [errors[what] for errors in said] == [WANTED[what]] * 2


def test_a_rank_that_is_no_member_is_named(said: list[dict[str, str]]) -> None:
    for rank, errors in enumerate(said):
        assert errors["none"] == NOT_IN.format(rank, [])
        assert errors["others"] == NOT_IN.format(rank, [1 - rank])
