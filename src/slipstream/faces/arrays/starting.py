"""How Horovod's operations on arrays start: when all ranks have called them.

Each function checks the arguments of this rank; `requests` says what the ranks compare. All return at once what is
waited for by ``wait()``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from ctypes import memmove
from typing import Any

import numpy as np

from slipstream._core import address_of
from slipstream.base.dtypes import DType, WireType
from slipstream.comm.collectives.copies_back import OPEN, await_memory
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import Request
from slipstream.comm.negotiation.negotiated import DONE, Pending
from slipstream.comm.negotiation.order import MOST_SHARED
from slipstream.faces.arrays.movement import (
    check_splits,
    number_of_root,
    start_all_gather,
    start_all_to_all,
    start_broadcast,
    start_grouped_all_gather,
)
from slipstream.faces.arrays.operands import Array, code_of, dtype_of, factor_for, new_array
from slipstream.faces.arrays.reductions import (
    start_all_reduce,
    start_grouped_all_reduce,
    start_grouped_reduce_scatter,
    start_reduce_scatter,
)
from slipstream.faces.arrays.requests import (
    BARRIER,
    KIND_OF_FORM,
    broadcast_request,
    grouped_request,
    rows_request,
    shares_request,
    sum_request,
)
from slipstream.faces.horovod.handles import Named, may_take_part, run, start
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.horovod.reduce_ops import Max, Min, Product

__all__ = [
    "all_gather",
    "all_reduce",
    "all_reduce_now",
    "all_to_all",
    "barrier",
    "broadcast",
    "grouped_all_gather",
    "grouped_all_reduce",
    "grouped_reduce_scatter",
    "reduce_scatter",
]


class _SumPart:
    """An array's part of a buffer that several sums share. The sum comes to ``out``, or to a new array."""

    __slots__ = ("_array", "_out")

    def __init__(self, array: Array, out: Array | None) -> None:
        self._array, self._out = array, out

    def pack(self, group: Group, address: int) -> None:
        """Copies the input there, once no earlier operation writes to it any more."""
        memmove(address, self.source(group), self._array.nbytes)

    def source(self, group: Group) -> int:
        """The input's address, once no earlier operation writes to it any more."""
        address = address_of(self._array)
        if OPEN or not group.session.quiet():
            await_memory(group, "allreduce", address, self._array.nbytes, writes=False)
        return address

    def unpack(self, address: int) -> Array:
        """Takes the sum from there."""
        result, target = self.target()
        memmove(target, address, result.nbytes)
        return result

    def target(self) -> tuple[Array, int]:
        """Room for the sum, and its address."""
        result = new_array(self._array.shape, self._array.dtype) if self._out is None else self._out
        return result, address_of(result)


def all_reduce(
    array: Array,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: WireType = WireType.EXACT,
    sync: bool = True,
    out: Array | None = None,
) -> Named:
    """An all-reduce of one array; gives a new array of its shape and dtype, or ``out``, which Adasum does not use."""
    code = code_of(array)
    if prescale != 1.0 or postscale != 1.0:
        prescale, postscale = factor_for(code, prescale), factor_for(code, postscale)
    own = sync and not name and _has_reducers(process_set.group, array.nbytes)
    return start(
        name,
        process_set,
        lambda text: sum_request(text, code, array.shape, op, prescale, postscale, wire, own),
        lambda used: start_all_reduce(
            array, name, op, prescale, postscale, used, wire, sync and used is process_set, out
        ),
        lambda: _SumPart(array, out),
        sync,
    )


def all_reduce_now(
    array: Array,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    group: Group,
    wire: WireType = WireType.EXACT,
) -> Array:
    """What `all_reduce` gives in the end: quicker where the array is small. ``group``: the set's."""
    if array.nbytes > MOST_SHARED:
        found: Array = all_reduce(array, name, op, prescale, postscale, process_set, wire).wait()
        return found
    code = code_of(array)
    if prescale != 1.0 or postscale != 1.0:
        prescale, postscale = factor_for(code, prescale), factor_for(code, postscale)
    result: Array = run(
        name,
        process_set,
        group,
        sum_request(name or "", code, array.shape, op, prescale, postscale, wire, False),
        lambda used: start_all_reduce(
            array, name, op, prescale, postscale, used, wire, sync=used is process_set
        ),
        _SumPart(array, None),
    )
    return result


def grouped_all_reduce(
    arrays: Sequence[Array],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: WireType = WireType.EXACT,
) -> Named:
    """An all-reduce of several arrays; gives the list of theirs."""
    return start(
        name,
        process_set,
        lambda text: grouped_request(text, arrays, op, prescale, postscale, wire),
        lambda used: start_grouped_all_reduce(arrays, name, op, prescale, postscale, used, wire),
        sync=True,
    )


def _check_rows(array: Array) -> None:
    if array.ndim == 0:
        raise ValueError("reducescatter needs a tensor of at least one dimension")


def reduce_scatter(
    array: Array,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: WireType = WireType.EXACT,
) -> Named:
    """A reduce-scatter of one array along dim 0; gives this rank's rows."""
    _check_rows(array)
    own = not name and _has_reducers(process_set.group, array.nbytes)
    return start(
        name,
        process_set,
        lambda text: shares_request(text, [array], op, prescale, postscale, wire, own),
        lambda used: start_reduce_scatter(
            array, name, op, prescale, postscale, used, wire, sync=used is process_set
        ),
        sync=True,
    )


def grouped_reduce_scatter(
    arrays: Sequence[Array],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: WireType = WireType.EXACT,
) -> Named:
    """A reduce-scatter of each array; gives the list of this rank's rows."""
    for one in arrays:
        _check_rows(one)
    return start(
        name,
        process_set,
        lambda text: shares_request(text, arrays, op, prescale, postscale, wire),
        lambda used: start_grouped_reduce_scatter(arrays, name, op, prescale, postscale, used, wire),
        sync=True,
    )


def all_gather(array: Array, name: str | None, process_set: ProcessSet) -> Named:
    """An all-gather of one array along dim 0; gives the rows of all ranks."""
    return start(
        name,
        process_set,
        lambda text: rows_request("allgather", text, [array]),
        lambda used: start_all_gather(array, name, used),
        sync=True,
    )


def grouped_all_gather(arrays: Sequence[Array], name: str | None, process_set: ProcessSet) -> Named:
    """An all-gather of each array; gives the list of theirs."""
    return start(
        name,
        process_set,
        lambda text: rows_request("allgather", text, arrays),
        lambda used: start_grouped_all_gather(arrays, name, used),
        sync=True,
    )


def broadcast(
    arrays: Sequence[Array],
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    outs: Sequence[Array] | None = None,
) -> Named:
    """A broadcast of each array; gives the list of new arrays, or ``outs``."""
    number_of_root(root_rank, process_set)
    return start(
        name,
        process_set,
        lambda text: broadcast_request(text, arrays, root_rank),
        lambda used: start_broadcast(arrays, root_rank, name, used, outs),
        sync=True,
    )


def all_to_all(
    array: Array, splits: Sequence[int] | None, name: str | None, process_set: ProcessSet
) -> Named:
    """An all-to-all along dim 0; gives the rows, and how many came from each rank."""
    check_splits(array, splits, process_set.group.size)
    return start(
        name,
        process_set,
        lambda text: rows_request("alltoall", text, [array]),
        lambda used: start_all_to_all(array, splits, name, used),
        sync=True,
    )


def barrier(process_set: ProcessSet) -> Named:
    """That all ranks have called it is all there is to it."""
    return start(None, process_set, lambda _: BARRIER, lambda _: DONE, sync=True)


def _has_reducers(group: Group, nbytes: int) -> bool:
    """Whether a call that waits may use the job's reducers, which need one order on all ranks: the main thread's."""
    return (
        nbytes > MOST_SHARED
        and group.job.reducers.for_choices(group) is not None
        and threading.current_thread() is threading.main_thread()
    )


def _take_part(request: Request, group: Group) -> Pending:
    """Starts the part of a rank that has joined in what others have called.

    It brings zeros to sums and averages, what changes nothing to Min, Max and Product, and no rows elsewhere; what it
    receives is dropped.
    """
    form: Any = json.loads(request.form.partition(" ")[2])
    label, own = request.name or None, ProcessSet(group.ranks).on(group)
    if request.kind == "allreduce":
        kinds, op, prescale, postscale, wire, grouped = form
        given = [_nothing(code, shape, op) for code, shape in kinds]
        asked = op, prescale, postscale, own, WireType(wire)
        if grouped:
            return start_grouped_all_reduce(given, label, *asked)
        return start_all_reduce(given[0], label, *asked)
    if request.kind == "reducescatter":
        kinds, op, prescale, postscale, wire = form
        given = [_nothing(code, shape, op) for code, shape in kinds]
        return start_grouped_reduce_scatter(given, label, op, prescale, postscale, own, WireType(wire))
    if request.kind == "broadcast":
        kinds, root_rank = form
        given = [np.zeros(shape, dtype_of(code)) for code, shape in kinds]
        return start_broadcast(given, root_rank, label, own)
    rows = [np.empty((0, *tail), dtype_of(code)) for code, tail in form]
    if request.kind == "alltoall":
        return start_all_to_all(rows[0], [0] * own.group.size, label, own)
    return start_grouped_all_gather(rows, label, own)


may_take_part(
    ["allreduce", "reducescatter", "broadcast", "allgather", "alltoall"], _take_part, of=KIND_OF_FORM
)
may_take_part([BARRIER.kind], lambda *_: DONE)


def _nothing(code: int, shape: Sequence[int], op: int) -> Array:
    """An array that does not change what the others reduce."""
    dtype = dtype_of(code)
    if op == Product:
        return np.ones(shape, dtype)
    if op not in (Min, Max):
        return np.zeros(shape, dtype)
    if dtype == np.bool_:
        return np.full(shape, op == Min)
    if code in (DType.F64, DType.F32, DType.F16, DType.BF16, DType.F8E4M3, DType.F8E5M2):
        most = 448.0 if code == DType.F8E4M3 else np.inf  # float8_e4m3fn has no infinity
        return np.full(shape, most if op == Min else -most, np.float32).astype(dtype)
    info = np.iinfo(dtype)
    return np.full(shape, info.max if op == Min else info.min, dtype)
