"""What ranks of these tests call, and how they check it. Joins the job when it is imported.

With NOW in the environment, blocking sums run by `Negotiator.run_now`.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from ctypes import memmove

import numpy as np
from locking import until_locked
from numpy.typing import NDArray

import slipstream
from slipstream.base.dtypes import DType, Op
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import Request, Sum
from slipstream.comm.negotiation.negotiated import Negotiated
from slipstream.comm.negotiation.negotiator import negotiator_of

slipstream.init()
RANK, SIZE = slipstream.rank(), slipstream.size()
NOW = "NOW" in os.environ
WAITS = re.compile(r"\n  waits: ")
WORLD = slipstream.world()


class Shared:
    """The part of an array in a buffer that several share."""

    def __init__(self, data: NDArray[np.float64]) -> None:
        self.data = data

    def pack(self, group: Group, address: int) -> None:
        memmove(address, self.data.ctypes.data, self.data.nbytes)

    def unpack(self, address: int) -> NDArray[np.float64]:
        result = np.empty_like(self.data)
        memmove(result.ctypes.data, address, result.nbytes)
        return result

    def source(self, group: Group) -> int:
        return self.data.ctypes.data

    def target(self) -> tuple[NDArray[np.float64], int]:
        result = np.empty_like(self.data)
        return result, result.ctypes.data


def own(name: str) -> float:
    return RANK + 1.0 + len(name)


def submit(
    name: str,
    count: int = 5,
    start: Callable[[Group], slipstream.Work] | None = None,
    sync: bool = False,
    shared: bool = False,
    value: float | None = None,
) -> Negotiated:
    data = np.full(count, own(name) if value is None else value)

    def begin(group: Group) -> slipstream.Work:
        return slipstream.all_reduce(data, group=group, async_op=True)  # type: ignore[return-value]

    one = Sum(int(DType.F64), int(Op.SUM), count, 8 * count) if shared else None
    request = Request("all_reduce", name, f"{count} elements", sum=one)
    return negotiator_of(WORLD).submit(request, start or begin, Shared(data) if shared else None, sync)


def check(name: str, work: Negotiated, wanted: float | None = None) -> None:
    check_sum(name, work.wait(), wanted)
    assert work.done()


def check_sum(name: str, found: NDArray[np.float64], wanted: float | None = None) -> None:
    if wanted is None:
        wanted = sum(r + 1.0 + len(name) for r in range(SIZE))
    assert (found == wanted).all()


@functools.cache
def request_of(name: str, count: int) -> Request:
    one = Sum(int(DType.F64), int(Op.SUM), count, 8 * count)
    return Request("all_reduce", name, f"{count} elements", sum=one)


def blocking(name: str, count: int = 5) -> NDArray[np.float64]:
    """A sum that this thread waits for."""
    if not NOW:
        return submit(name, count, sync=True, shared=True).wait()  # type: ignore[no-any-return]
    data = np.full(count, own(name))
    request = request_of(name, count)  # one that is known already runs alone

    def begin(group: Group) -> slipstream.Work:
        return slipstream.all_reduce(data, group=group, async_op=True)  # type: ignore[return-value]

    return negotiator_of(WORLD).run_now(request, Shared(data), begin)  # type: ignore[no-any-return]


def error_of(work: Negotiated) -> Exception:
    try:
        work.wait()
    except Exception as error:
        return error
    raise AssertionError("no error")


def lock(*names: str) -> None:
    """Calls these operations, equally often on all ranks, until their order is locked."""

    def step() -> None:
        for name in names:
            check(name, submit(name, sync=True, shared=len(names) == 1))

    until_locked(step)
