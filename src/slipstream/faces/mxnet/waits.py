"""Calls that wait, in the lines of those that MXNet's engine runs: so all ranks meet, whichever way each of them goes.

All-reduces and broadcasts of arrays that cannot be pushed work on the arrays' memory, in the line. Other operations
take a place there, and begin when all ranks have come to it: where one calls an all-gather and another an all-reduce,
all of them get Mismatch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from slipstream import _core
from slipstream._core import address_of
from slipstream.comm.negotiation.agreement import Request
from slipstream.faces.arrays.operands import Array
from slipstream.faces.horovod.handles import started_after
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.mxnet.asked import Asked
from slipstream.faces.mxnet.failures import error_of
from slipstream.faces.mxnet.lines import CALLS, line_of
from slipstream.faces.mxnet.memory import Memory

__all__ = ["Waiting", "in_turn", "start"]


class Waiting:
    """An operation of a line; `wait` waits for it."""

    __slots__ = ("_finish", "_native")

    def __init__(self, native: _core.MxnetWaited, finish: Callable[[], None]) -> None:
        self._native, self._finish = native, finish

    def wait(self) -> None:
        """Until the results are there; raises the operation's error."""
        _wait_for(self._native)
        self._finish()


def start(line: _core.MxnetLine, asked: Asked, inputs: Sequence[Any], results: Sequence[Any]) -> Waiting:
    """Starts what `push` does, once MXNet has computed the arrays.

    Several arrays are copied, as they may share memory. TypeError for arrays that `Memory` does not take.
    """
    in_place = results is inputs
    sources = [Memory(one, writes=in_place) for one in inputs]
    targets = sources if in_place else [Memory(one, writes=True) for one in results]
    shapes = [one.shape for one in sources]
    reads = [one.view() for one in sources]
    writes = reads if in_place else [one.view() for one in targets]
    outs: list[Array] = writes
    if len(reads) > 1:
        reads = outs = [one.copy() for one in reads]
    plain = [
        (int(source.dtype), shape, address_of(read), address_of(out))
        for source, shape, read, out in zip(sources, shapes, reads, outs, strict=True)
    ]

    def finish() -> None:
        if outs is not writes:
            for target, out in zip(writes, outs, strict=True):
                target[...] = out

    return Waiting(line.start(plain, (reads, outs), *asked), finish)


@contextlib.contextmanager
def in_turn() -> Iterator[None]:
    """Within it an operation that is none of the line's begins in its turn, with its arguments checked before."""
    with started_after(_take_turn):
        yield


def _take_turn(process_set: ProcessSet, asked: Request) -> None:
    what = f"{asked.kind} {asked.name!r}" if asked.name else ""
    arrays = ", ".join(one for one in asked.facts.split("; ") if one) if asked.form else ""
    _wait_for(line_of(process_set.group, CALLS).turn(asked.kind, what, arrays))


def _wait_for(native: _core.MxnetWaited) -> None:
    """Raises its error."""
    while not native.wait(0.1):  # a signal's handler may run between two looks
        pass
    status, text = native.outcome
    if status:
        raise error_of(status, text)
