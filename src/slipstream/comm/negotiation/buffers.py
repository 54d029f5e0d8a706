"""Sums that travel together: what they share is one buffer, with a flag at its end in a locked order."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from slipstream.base.dtypes import DType, Op, itemsize
from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.copies_back import await_memory
from slipstream.comm.collectives.work import Work
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import Sum
from slipstream.comm.negotiation.negotiated import Negotiated, Pending, PlainPart

__all__ = ["Buffer", "SharedSum"]

_GATE = Sum(int(DType.F32), int(Op.SUM), 0, 0)
_BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}
# The bits of 1, which no number of ranks makes 0 by a sum or an average.
_UP = {
    int(DType.F16): 0x3C00,
    int(DType.BF16): 0x3F80,
    int(DType.F32): 0x3F800000,
    int(DType.F64): 0x3FF0000000000000,
    int(DType.I32): 1,
    int(DType.I64): 1,
}


class Buffer:
    """Memory for ``parts``, which are alike, and a flag behind them if it is ``flagged``. Without parts: the flag."""

    def __init__(self, parts: Sequence[Sum], flagged: bool) -> None:
        first = parts[0] if parts else _GATE
        self._first, self._flagged = first, flagged
        self._count = sum(one.elements for one in parts) + flagged
        self._memory = np.zeros(self._count * itemsize(first.dtype), np.uint8)
        self._address = self._memory.ctypes.data
        self._nbytes = sum(one.nbytes for one in parts)
        self._plan = "all_reduce", self._memory.nbytes.bit_length(), 0
        starts = accumulate((one.nbytes for one in parts), initial=self._address)
        self._places = tuple(starts)[:-1]
        self._flag: Any = self._memory.view(_BITS[itemsize(first.dtype)])[-1:] if flagged else None

    def pack(self, group: Group, calls: Sequence[Negotiated | None]) -> None:
        """Copies their inputs there. None: this rank has none, and its part is zeros."""
        for place, call in zip(self._places, calls, strict=True):
            if call is not None:
                assert call.part is not None
                call.part.pack(group, place)

    def unpack(self, calls: Sequence[Negotiated]) -> None:
        """Gives the calls their results."""
        for place, call in zip(self._places, calls, strict=True):
            assert call.part is not None
            call.give(call.part.unpack(place))

    def take(self, number: int, call: Negotiated) -> Any:
        """The result of one of them."""
        assert call.part is not None
        return call.part.unpack(self._places[number])

    def raise_flag(self) -> None:
        """What comes back is void on all ranks."""
        self._flag[0] = _UP[self._first.dtype]

    def is_flagged(self) -> bool:
        """Whether some rank has raised the flag."""
        return bool(self._flag[0])

    def reduce(self, group: Group, label: str, sync: bool = False, timeout: float = 0.0) -> Work:
        """Starts the all-reduce, or runs it in this thread. ``timeout``: seconds; 0: as for all operations."""
        address, first = self._address, self._first
        return addresses.all_reduce(
            group,
            address,
            address,
            self._count,
            first.dtype,
            first.op,
            name=label,
            prescale=first.prescale,
            postscale=first.postscale,
            keep=self._memory,
            sync=sync,
            timeout=timeout,
        )

    def run(self, group: Group, label: str) -> None:
        """Runs the all-reduce in this thread, with the plan of the call before if that still holds."""
        request = self._request(group)
        if request is None:
            self.reduce(group, label, sync=True)
            return
        address = self._address
        group.session.run(request, address, address, self._count, label, 0.0, self._memory)

    def run_one(self, group: Group, label: str, part: PlainPart, source: int) -> Any:
        """The same for the only part, whose input is at ``source``. Returns its result; None if the flag is up."""
        request = self._request(group)
        if request is None:
            part.pack(group, self._address)
            self.reduce(group, label, sync=True)
            return None if self.is_flagged() else part.unpack(self._address)
        result, target = part.target()
        memory = self._memory
        group.session.run_copied(
            request, self._address, self._count, source, target, self._nbytes, label, 0.0, memory
        )
        return None if self._flag[0] else result

    def _request(self, group: Group) -> Any:
        """That of the call before; None if it does not hold any more."""
        compiled = group.plans.get(self._plan)
        if compiled is None or compiled.tuned_by is not None or not self._flagged:
            return None
        return compiled.requests.get((self._first.dtype, self._first.op))

    def await_run(self, group: Group) -> None:
        """Waits for a `reduce` in a call that a signal's handler has broken off."""
        await_memory(group, "allreduce", self._address, self._memory.nbytes, writes=False)


class SharedSum:
    """One of the sums that were started together."""

    def __init__(self, buffer: Buffer, number: int, call: Negotiated, work: Pending) -> None:
        self._buffer, self._number, self._call, self._work = buffer, number, call, work
        self._lock = threading.RLock()  # a signal's handler may wait for it, too
        self._taken = False
        self._result: Any = None

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._work.done()

    def wait(self) -> Any:
        """Waits for the buffer; returns this sum's result."""
        self._work.wait()
        with self._lock:
            if not self._taken:
                self._result = self._buffer.take(self._number, self._call)
                self._taken = True
        return self._result
