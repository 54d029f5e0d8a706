"""What the C table (native/capi) asks of Python: groups, and the request of each kind of call that is new to it.

The table calls `find`, `make` and a `Caller`'s methods with Python's lock held, in whichever thread has called it. None
of them raises: what goes wrong comes back as a tuple (code, rank, host, text), as the engine has errors.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from slipstream import _core
from slipstream.base import errors, training
from slipstream.base.dtypes import DType, Op, WireType, itemsize, wire_share
from slipstream.comm.collectives.copies_back import settle
from slipstream.comm.collectives.interruption import abort_interrupted
from slipstream.comm.collectives.overlaps import place_of
from slipstream.comm.collectives.requests import (
    kept,
    of_all_gather,
    of_all_to_all,
    of_barrier,
    of_broadcast,
    of_gather,
    of_message,
    of_reduce,
    of_reduce_scatter,
    of_scatter,
    of_sum,
    sum_key,
)
from slipstream.comm.collectives.wires import wire_for
from slipstream.comm.membership.group import Compiled, Group, world

__all__ = ["Caller", "Failure", "failure_of", "find", "handle_of", "make"]

# As slipstream.h numbers them.
_NAMES = (
    "",
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "send",
    "recv",
    "barrier",
)
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.PeerLost, 1),
    (errors.Mismatch, 2),
    (errors.Timeout, 3),
    (errors.Refused, 4),
    (errors.Aborted, 5),
    (ValueError, 6),
    (TypeError, 6),
    (errors.SlipstreamError, 6),  # there is no job
)
Failure = tuple[int, int, str, str]
_T = TypeVar("_T")

_given: weakref.WeakValueDictionary[int, Group] = weakref.WeakValueDictionary()  # that C may ask for by id


def failure_of(error: BaseException) -> Failure:
    """An error as the engine has it: code, rank, host, text."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), 7)
    text = str(error) if isinstance(error, errors.SlipstreamError | ValueError) else repr(error)
    return code, getattr(error, "rank", -1), getattr(error, "host", ""), text


def _answered(f: Callable[[], _T]) -> _T | Failure:
    try:
        return f()
    except BaseException as error:
        return failure_of(error)


def handle_of(group: Group) -> int:
    """The address of C's handle of the group: a new reference, for the table's ``group_release``."""
    _given[group.id] = group
    return _core.c_group(group.session, group.native, Caller(group))


def find(group_id: int) -> int | Failure:
    """The handle of the group with this id that `handle_of` has been asked for; 0: of the world."""

    def found() -> int:
        if group_id == 0:
            group = world()
            group.job.when_left(lambda: _core.c_forget_world(group.id))
            return handle_of(group)
        known = _given.get(group_id)
        if known is None:
            raise ValueError(f"no group of this process that C knows has the id {group_id}")
        return handle_of(known)

    return _answered(found)


def make(ranks: Sequence[int]) -> int | Failure:
    """The handle of a new group of these ranks."""
    return _answered(lambda: handle_of(Group(ranks)))


class Caller:
    """Answers for one group, which lives as long as C has its handle."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def prepare(self, collective: int, *args: Any) -> tuple[Any, ...] | Failure:
        """What the calls of a kind have in common: see `_prepared` for the arguments.

        (request, elements that the engine is told of or -1 for those of the call, scratch, bytes that the wire type
        saves, whether this holds for all calls of the kind, what to tell of this call). Scratch: None; or (whether it
        takes the place of the input, its bytes, and which part of it is copied: begin, bytes).
        """
        name = _NAMES[collective]
        try:
            return _prepared(self._group, name, *args)
        except BaseException as error:
            # It came before the engine had the operation, which the other ranks may wait for.
            abort_interrupted(error, name, lambda: self._group)
            return failure_of(error)

    def settle(
        self, collective: int, peer: int, tag: int, src: tuple[int, int], dst: tuple[int, int]
    ) -> Failure | None:
        """Before a call on memory (address, bytes) that a copy of a result may still write."""
        group, name = self._group, _NAMES[collective]

        def settled() -> None:
            channel = 0
            if name in ("send", "recv"):
                ends = (group.rank, peer) if name == "send" else (peer, group.rank)
                channel = group.channel(*ends, tag)
            settle(group, channel, name, (*src, None), (*dst, None))

        try:
            return _answered(settled)
        except BaseException as error:
            abort_interrupted(error, name, lambda: group)
            return failure_of(error)


def _prepared(
    group: Group,
    name: str,
    count: int,
    counts: list[int] | None,
    recv_counts: list[int] | None,
    dtype: int,
    op: int,
    root: int,
    tag: int,
    prescale: float,
    postscale: float,
    wire: int,
) -> tuple[Any, ...]:
    """``count``: elements of the call; ``counts``: of each rank, where it gives them; ``root``: or the peer."""
    if name == "barrier":
        compiled, kind, reduction = of_barrier(group)
        return _plain(group, compiled, kind, reduction, {})
    if name in ("send", "recv"):
        return _plain(group, *_swapped(of_message(group, name, root, tag), dtype, -1))
    nbytes = count * itemsize(dtype)
    blocks = tuple(counts) if counts is not None else (count,) * group.size
    code = wire_for(group, wire, dtype, op if name in ("all_reduce", "reduce_scatter") else -1)
    if name == "all_reduce":
        return _sum(group, nbytes, sum_key(dtype, op, (), prescale, postscale, True, code), code)
    if name == "reduce":
        asked = of_reduce(group, nbytes, op, root, (), prescale, postscale, True)
        return _plain(group, *_swapped(asked, dtype, op))
    if name == "broadcast":
        asked = of_broadcast(group, nbytes, dtype, root, ())
        part = (0, nbytes if group.rank == root else 0)
        return _united(group, asked, nbytes, part, dtype)
    total = sum(blocks) * itemsize(dtype)
    if name == "reduce_scatter":
        asked = of_reduce_scatter(group, blocks, dtype, op, (), prescale, postscale, True, code)
        scratch = (False, total, *place_of(blocks, group.rank, dtype)) if asked[0].reducers else None
        return _plain(group, *_swapped(asked, dtype, op), scratch=scratch, saved=_saved(code, total))
    if name == "all_gather":
        asked = of_all_gather(group, blocks, dtype, code)
        return _united(
            group, asked, total, place_of(blocks, group.rank, dtype), dtype, saved=_saved(code, total)
        )
    if name == "all_to_all":
        received = tuple(recv_counts) if recv_counts is not None else blocks
        sent = (sum(blocks) - blocks[group.rank]) * itemsize(dtype)
        asked = of_all_to_all(group, blocks, received, dtype, code)
        return _plain(group, *_swapped(asked, dtype, -1), saved=_saved(code, sent))
    asked = (of_gather if name == "gather" else of_scatter)(group, blocks, dtype, root)
    return _plain(group, *_swapped(asked, dtype, -1))


def _swapped(asked: tuple[Compiled, dict[str, Any]], dtype: int, op: int) -> tuple[Any, ...]:
    return asked[0], dtype, op, asked[1]


def _plain(
    group: Group,
    compiled: Compiled,
    dtype: int,
    op: int,
    fields: dict[str, Any],
    *,
    count: int = -1,
    scratch: tuple[bool, int, int, int] | None = None,
    saved: int = 0,
) -> tuple[Any, ...]:
    key = (dtype, op, *fields.values())
    request = compiled.requests.get(key) or kept(group, compiled, key, fields)
    return request, count, scratch, saved, scratch is None, None


def _united(
    group: Group,
    asked: tuple[Compiled, dict[str, Any]],
    nbytes: int,
    part: tuple[int, int],
    dtype: int,
    saved: int = 0,
) -> tuple[Any, ...]:
    """``part``: which bytes of ``nbytes`` this rank contributes, if reducers unite them."""
    compiled, fields = asked
    if not compiled.reducers:
        return _plain(group, compiled, dtype, -1, fields, saved=saved)
    return _plain(
        group, compiled, DType.U8, Op.BOR, fields, count=nbytes, scratch=(True, nbytes, *part), saved=saved
    )


def _saved(wire: WireType, nbytes: int) -> int:
    return int(nbytes * (1 - wire_share(wire))) if wire else 0


def _sum(group: Group, nbytes: int, key: tuple[Any, ...], wire: WireType) -> tuple[Any, ...]:
    compiled = group.compiled_for(wire, "all_reduce", nbytes)
    tuner, watcher = compiled.tuned_by, None
    request = compiled.requests.get(key) or kept(group, compiled, key, of_sum(group, key))
    if tuner is not None:  # not before: a call with wrong arguments would count on this rank alone
        compiled, begun = tuner.begin(), time.monotonic()
        request = compiled.requests.get(key) or kept(group, compiled, key, of_sum(group, key))

        def watcher(work: _core.Work | None) -> None:
            tuner.ran(begun, work)

    return request, -1, None, _saved(wire, nbytes), tuner is None, watcher


training.also_saved(_core.c_saved_bytes)
