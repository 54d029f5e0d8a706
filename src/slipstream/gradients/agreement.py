"""Whether all ranks have the same parameters and compress them alike, and if not, where they differ."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import numpy as np

from slipstream.base.dtypes import DType, Op
from slipstream.base.errors import Mismatch
from slipstream.base.log import Log
from slipstream.base.own_names import own_name
from slipstream.base.spans import format_spans
from slipstream.comm.collectives import addresses, arrays
from slipstream.comm.collectives.interruption import found_by_all
from slipstream.comm.membership.group import Group

__all__ = ["check_agreement", "check_arguments", "check_compressions", "check_values", "description"]

_MOST_SHOWN = 5  # parameters in a text

_NAMES = (
    ". Only the names differ: make or load the same models in the same order on all ranks, or give the layers names "
    "(Keras makes names of how many layers a process has made before, and a loaded model has others than a new one)"
)

_log = Log("slipstream.gradients")


def description(name: str, shape: Sequence[int], dtype: str) -> str:
    """A parameter in words: its name, shape and dtype."""
    return f"{name or 'without a name'} {tuple(shape)} {dtype}"


def check_agreement(what: str, mine: Sequence[str], group: Group) -> None:
    """Compares ``mine`` (a description for each parameter, in order) with the other ranks'. Every rank calls it.

    Raises Mismatch on all ranks alike if they differ; ``what`` the ranks do with parameters begins its text.
    """
    lists = _lists_that_differ(mine, group, own_name("the parameters of all ranks"))
    if lists:
        raise _of_parameters(what, lists, group.native.ranks)


def _of_parameters(what: str, lists: Sequence[Sequence[str]], ranks: Sequence[int]) -> Mismatch:
    """``lists``: the parameters of each rank in words, not all equal."""
    number = next(number for number, theirs in enumerate(lists) if theirs != lists[0])
    first, theirs = lists[0], lists[number]
    differ = [
        f"parameter {i} is {one} on rank {ranks[0]} and {other} on rank {ranks[number]}"
        for i, (one, other) in enumerate(zip_longest(first, theirs, fillvalue="missing"))
        if one != other
    ]
    kinds = [[one.partition(" (")[2] for one in texts] for texts in (first, theirs)]
    cure = _NAMES if kinds[0] == kinds[1] else ""
    more = f"; and {len(differ) - _MOST_SHOWN} more" if len(differ) > _MOST_SHOWN else ""
    return Mismatch(
        f"the ranks {what} different parameters: {'; '.join(differ[:_MOST_SHOWN])}{more}. Names, shapes, dtypes, "
        f"their order and what is done with them must be the same on all ranks{cure}"
    )


def check_values(marks: Sequence[int], described: Sequence[str], named: bool, group: Group) -> None:
    """Compares the values with which the ranks begin. Every rank calls it.

    ``marks``: a number for each parameter, made of its values; none where nobody can tell yet. ``described``: each
    parameter in words. ``named``: ranks match them by names. Where the values differ, the group's first rank logs a
    warning, as each rank would train a model of its own. Where they are the same in another order, and ranks match
    parameters by their order, raises Mismatch on all ranks alike.
    """
    lists = _lists_that_differ([str(mark) for mark in marks], group, own_name("the values of all parameters"))
    if not lists:
        return
    ranks = group.native.ranks
    number = next(number for number, theirs in enumerate(lists) if theirs != lists[0])
    differ = [i for i, (one, other) in enumerate(zip(lists[0], lists[number], strict=True)) if one != other]
    if not named and all(sorted(theirs) == sorted(lists[0]) for theirs in lists):
        place = differ[0]
        raise Mismatch(
            f"the ranks have their parameters in different orders: parameter {place} of rank {ranks[0]} has the values "
            f"of parameter {lists[number].index(lists[0][place])} of rank {ranks[number]}. Give all ranks "
            "named_parameters=, by which parameters are matched, or the parameters in one order"
        )
    if group.rank == 0:
        _log.warning(
            "%d of %d parameters begin with other values on rank %d than on rank %d, the first of them %s: each rank "
            "trains a model of its own. Give all ranks the values of one before the first step, as "
            "broadcast_parameters does",
            len(differ),
            len(lists[0]),
            ranks[number],
            ranks[0],
            described[differ[0]],
        )


def check_compressions(
    of_all: str,
    ways: Sequence[str],
    described: Sequence[str],
    group: Group,
    timeout: float = 0.0,
    name: str = own_name("the compressions of all ranks"),
) -> None:
    """Compares the parameters of the ranks, and the compressions that they have been given. Every rank calls it.

    ``of_all``: the compression of all gradients. ``ways``: that of each, and ``described``: its parameter in words.
    ``timeout``: seconds that the comparison may take, 0 for the job's limit. ``name``: what errors call it.
    Raises Mismatch on all ranks alike if they differ.
    """
    lists = _lists_that_differ([*described, of_all, *ways], group, name, timeout)
    if not lists:
        return
    ranks = group.native.ranks
    parameters = [one[: len(one) // 2] for one in lists]
    if any(one != parameters[0] for one in parameters):
        raise found_by_all(_of_parameters("compress", parameters, ranks))
    chosen = zip(*(one[len(one) // 2 :] for one in lists), strict=True)
    number, found = next((i, found) for i, found in enumerate(chosen) if len(set(found)) > 1)
    of = f" of the gradient of {described[number - 1]}" if number else ""
    raise found_by_all(
        Mismatch(
            f"the compression{of} differs between ranks: {_sides(ranks, found)}. Give compression=, exact= and the "
            '"wire" of parameter groups the same values on all ranks'
        )
    )


def check_arguments(overlaps: bool, passes: int, group: Group) -> None:
    """Compares what the ranks have been given beside their parameters. Every rank calls it.

    ``overlaps``: whether steps overlap the next forward pass. ``passes``: backward passes in a step. Raises Mismatch
    on all ranks alike if they differ.
    """
    mine = np.array([[overlaps, passes]], dtype=np.int64)
    overlap, counts = np.asarray(arrays.all_gather(mine, group=group)).T.tolist()
    if len(set(overlap)) > 1:
        ranks = [rank for rank, one in zip(group.ranks, overlap, strict=True) if one]
        text = f"overlap_forward is given on {_named(ranks)} alone: give it on all ranks, or on none"
        raise found_by_all(Mismatch(text))
    if len(set(counts)) > 1:
        sides = _sides(group.ranks, counts)
        text = f"backward_passes_per_step differs between ranks: {sides}. Give all ranks the same"
        raise found_by_all(Mismatch(text))


def _sides(ranks: Sequence[int], values: Iterable[object]) -> str:
    """Which value each rank has: "1 on ranks 0-2, 4 on rank 3"."""
    found: dict[object, list[int]] = {}
    for rank, value in zip(ranks, values, strict=True):
        found.setdefault(value, []).append(rank)
    return ", ".join(f"{value} on {_named(sorted(here))}" for value, here in found.items())


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {format_spans(ranks)}"


def _lists_that_differ(mine: Sequence[str], group: Group, name: str, timeout: float = 0.0) -> list[list[str]]:
    """Every rank's list, in order of rank; none if all are equal."""
    mark = zlib.crc32("\n".join(mine).encode())
    facts = np.array([len(mine), -len(mine), mark, -mark], dtype=np.int64)
    address = facts.ctypes.data
    addresses.all_reduce(
        group,
        address,
        address,
        4,
        int(DType.I64),
        int(Op.MAX),
        name=name,
        keep=facts,
        sync=True,
        timeout=timeout,
    )
    if facts[0] == -facts[1] and facts[2] == -facts[3]:
        return []
    line = json.dumps(list(mine)) + "\n"
    lines = arrays.all_gather(np.frombuffer(line.encode(), dtype=np.uint8), group=group)
    return [json.loads(one) for one in lines.tobytes().splitlines()]
