"""One rank whose calls are broken off at each place after their operation has begun: copy_back_rank.py FACE FOLDER.

The result of each call has to be copied to memory that the engine cannot write. Whatever becomes of the call, the next
operation on that memory finds it there. c10d: of two ranks, of which rank 0 is broken off. hvd: of one rank.
"""

from __future__ import annotations

import dis
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

import slipstream
import slipstream.torch as hvd
from comm.interruption import Alarm, check_equal
from slipstream import _core
from slipstream.comm.collectives.copies_back import OPEN

# CPython handles signals behind these.
_CHECKS = ("CALL", "PRECALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")


class Break:
    """Raises Alarm where a handler of a signal can: at this place after an operation of this thread has begun."""

    def __init__(self, place: int) -> None:
        self._left = place
        self._before = _core.begun()
        self._latest: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, _event: str, _: object) -> Any:
        if frame.f_code.co_filename == threading.__file__:
            return None  # where CPython itself loses count of a lock
        frame.f_trace_opcodes = True
        self._latest[frame] = "RESUME"
        return self._trace

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode":
            before = self._latest.get(frame, "")
            self._latest[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before.startswith(_CHECKS) and _core.begun() > self._before:
                self._left -= 1
                if self._left == 0:
                    raise Alarm
        return self._trace


def broken_off(call: Callable[[], object], place: int) -> bool:
    """Breaks the call off; False if it has come to its end before."""
    sys.settrace(Break(place))
    try:
        call()
    except Alarm:
        return True
    finally:
        sys.settrace(None)
    return False


def strided(n: int, value: float) -> torch.Tensor:
    return torch.full((n, 2), value, dtype=torch.float64)[:, 0]


def c10d(folder: str) -> int:
    rank = int(os.environ["SLIPSTREAM_RANK"])
    dist.init_process_group("slipstream", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    on, place = torch.ones(1), 0
    while on[0]:
        place += 1
        mine = strided(4, 3.0 + 2 * rank)
        outputs = [torch.zeros(4, dtype=torch.float64) for _ in range(2)]
        calls = (lambda: dist.all_reduce(mine), lambda: dist.all_gather(outputs, mine.contiguous()))  # noqa: B023
        on[0] = 0
        for number, call in enumerate(calls):
            if rank == 0:
                on[0] = max(on[0], broken_off(call, place))
            else:
                call()
            used = (mine, outputs[1])[number]
            dist.all_reduce(used)
            check_equal(used, torch.full((4,), 16.0 if number == 0 else 32.0), f"{number} at place {place}")
        dist.broadcast(on, 0)
    dist.destroy_process_group()
    return place


def sum_in_place(data: torch.Tensor) -> None:
    hvd.allreduce_(data, op=hvd.Sum, postscale_factor=2.0)


def broadcast(data: torch.Tensor) -> None:
    hvd.broadcast_(data, 0)


def grouped(data: torch.Tensor) -> None:
    hvd.grouped_allreduce_([data, data.clone()], op=hvd.Sum, postscale_factor=2.0)


def adasum(data: torch.Tensor) -> None:
    hvd.allreduce_(data, op=hvd.Adasum, postscale_factor=2.0)


def one(_: str) -> int:
    """The tensor has the result, or the session has ended and says so."""
    hvd.init()
    most = 0
    for call, factor in ((sum_in_place, 2.0), (broadcast, 1.0), (grouped, 2.0), (adasum, 2.0)):
        place, on = 0, True
        while on:
            place += 1
            data = strided(4, 3.0)
            on = broken_off(lambda call=call, data=data: call(data), place)  # type: ignore[misc]
            try:
                hvd.allreduce_(data, op=hvd.Sum)
            except slipstream.SlipstreamError:
                assert call in (grouped, adasum)
                hvd.shutdown()
                hvd.init()
            else:
                check_equal(data, torch.full((4,), 3.0 * factor), f"{call.__name__} at place {place}")
        most = max(most, place)
    hvd.shutdown()
    return most


def main() -> None:
    places = {"c10d": c10d, "hvd": one}[sys.argv[1]](sys.argv[2])
    assert places > 20, places  # else nothing was broken off
    assert not OPEN, OPEN


main()
