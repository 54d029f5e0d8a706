"""Whether all ranks have the same list of parameters, and if not, where the lists differ."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import zip_longest

import torch

from slipstream.base.errors import Mismatch
from slipstream.faces.torch.objects import allgather_object
from slipstream.faces.torch.process_sets import ProcessSet
from slipstream.faces.torch.reductions import Max, start_all_reduce

__all__ = ["check_agreement", "description"]

_MOST_SHOWN = 5  # parameters in a text


def description(name: str, tensor: torch.Tensor) -> str:
    """A parameter in words: its name, shape and dtype."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{name or 'without a name'} {tuple(tensor.shape)} {dtype}"


def check_agreement(what: str, mine: Sequence[str], process_set: ProcessSet) -> None:
    """Compares ``mine`` (a description for each parameter, in order) with the other ranks'. Every rank calls it.

    Raises Mismatch on all ranks alike if they differ; ``what`` the ranks do with parameters begins its text.
    """
    mark = zlib.crc32("\n".join(mine).encode())
    facts = torch.tensor([len(mine), -len(mine), mark, -mark])
    start_all_reduce(facts, True, None, Max, 1.0, 1.0, process_set, sync=True).wait()
    if facts[0] == -facts[1] and facts[2] == -facts[3]:
        return
    lists = allgather_object(list(mine), process_set=process_set)
    ranks = process_set.group.ranks
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
