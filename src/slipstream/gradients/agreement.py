"""Whether all ranks have the same list of parameters, and if not, where the lists differ."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from slipstream.base.dtypes import Op
from slipstream.base.errors import Mismatch
from slipstream.comm.collectives import arrays
from slipstream.comm.membership.group import Group

__all__ = ["check_agreement", "description"]

_MOST_SHOWN = 5  # parameters in a text


def description(name: str, shape: Sequence[int], dtype: str) -> str:
    """A parameter in words: its name, shape and dtype."""
    return f"{name or 'without a name'} {tuple(shape)} {dtype}"


def check_agreement(what: str, mine: Sequence[str], group: Group) -> None:
    """Compares ``mine`` (a description for each parameter, in order) with the other ranks'. Every rank calls it.

    Raises Mismatch on all ranks alike if they differ; ``what`` the ranks do with parameters begins its text.
    """
    mark = zlib.crc32("\n".join(mine).encode())
    facts = np.array([len(mine), -len(mine), mark, -mark], dtype=np.int64)
    most = arrays.all_reduce(facts, Op.MAX, group=group).tolist()
    if most[0] == -most[1] and most[2] == -most[3]:
        return
    lists = _all_lists(mine, group)
    ranks = group.native.ranks
    number = next(number for number, theirs in enumerate(lists) if theirs != lists[0])
    first, theirs = lists[0], lists[number]
    differ = [
        f"parameter {i} is {one} on rank {ranks[0]} and {other} on rank {ranks[number]}"
        for i, (one, other) in enumerate(zip_longest(first, theirs, fillvalue="missing"))
        if one != other
    ]
    more = f"; and {len(differ) - _MOST_SHOWN} more" if len(differ) > _MOST_SHOWN else ""
    raise Mismatch(
        f"the ranks {what} different parameters: {'; '.join(differ[:_MOST_SHOWN])}{more}. Names, shapes, dtypes and "
        "their order must be the same on all ranks"
    )


def _all_lists(mine: Sequence[str], group: Group) -> list[list[str]]:
    """Every rank's list, in order of rank."""
    line = json.dumps(list(mine)) + "\n"
    lines = arrays.all_gather(np.frombuffer(line.encode(), dtype=np.uint8), group=group)
    return [json.loads(one) for one in lines.tobytes().splitlines()]
