"""One rank of two: broken_off_rank.py FOLDER CALL. CALL is a key of CALLS or CALLS_OF_C10D.

A signal's handler breaks off a call of rank 0, before the engine has its operation or between its operations; for ddp
while it waits in the backward pass.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

import slipstream
import slipstream.torch as hvd
from comm.interruption import Alarm, check_aborted, until
from slipstream.faces.torch import data_movement, state
from slipstream.faces.torch_distributed import dispatching

RANK = int(os.environ["SLIPSTREAM_RANK"])
FOLDER = Path(sys.argv[1])


class OwnError(Alarm, slipstream.SlipstreamError):
    """A handler's exception that looks like one of the library's."""


def ring_with_own_error(*_: object) -> None:
    raise OwnError


def alarm_in(owner: Any, name: str, *, call: int = 1) -> None:
    """The signal comes on rank 0 in the beginning of this call of the function ``name`` of ``owner``."""
    function = getattr(owner, name)
    calls = [0]

    def alarming(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if RANK == 0 and calls[0] == call:
            signal.raise_signal(signal.SIGALRM)
        return function(*args, **kwargs)

    setattr(owner, name, alarming)


def check_broken_off(call: Callable[[], object], name: str) -> None:
    """Rank 0's call is broken off. Its next one must not be taken for that by rank 1."""
    if RANK == 0:
        try:
            call()
        except Alarm:
            pass
        else:
            raise AssertionError("nothing broke the call off")
    check_aborted(call, name)


def numpy_copy() -> None:
    alarm_in(np, "ascontiguousarray")
    check_broken_off(lambda: slipstream.all_reduce(np.ones((20, 30)).T), "all_reduce")


def torch_copy() -> None:
    alarm_in(torch, "empty")
    check_broken_off(lambda: hvd.allreduce_(torch.ones(20, 30).t(), op=hvd.Sum), "allreduce_")


def check_goes_on(call: Callable[[], object]) -> None:
    """Rank 0's call is broken off while another thread of it works on the operation: that goes on."""
    try:
        call()
    except Alarm:
        assert RANK == 0
    else:
        assert RANK == 1
    for _ in range(5):
        assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [2, 2, 2]


def second_parameter() -> None:
    alarm_in(state, "start_broadcast", call=2)
    found = [torch.full((2,), float(RANK)) for _ in range(3)]
    check_goes_on(lambda: hvd.broadcast_parameters(found, root_rank=1))
    assert [one.tolist() for one in found] == [[1, 1]] * 3


def rows_after_sizes() -> None:
    signal.signal(signal.SIGALRM, ring_with_own_error)
    alarm_in(data_movement, "_all_gather_rows")
    check_goes_on(lambda: hvd.allgather(torch.ones(9000 + RANK)))


class Alarming:
    """Its negative is made without Python code: on rank 0 the signal comes then, and Python looks for it later."""

    __neg__ = staticmethod(functools.partial(getattr(ctypes.CDLL(None), "raise"), int(signal.SIGALRM)))


def first_instruction(call: Callable[[Any], object], name: str) -> None:
    arguments: list[Any] = [0, Alarming() if RANK == 0 else 0]
    check_broken_off(lambda: call(-arguments.pop()), name)


def broadcast_object() -> None:
    first_instruction(hvd.broadcast_object, "broadcast_object")


def allgather_object() -> None:
    first_instruction(hvd.allgather_object, "allgather_object")


def optimizer_state() -> None:
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    first_instruction(
        functools.partial(hvd.broadcast_optimizer_state, optimizer), "broadcast_optimizer_state"
    )


def _break_off() -> None:
    if RANK == 0:
        signal.raise_signal(signal.SIGALRM)


class Unpickled:
    """Its bytes are made an object again when every operation has begun: the signal comes then."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _break_off, ()


def unpickled() -> None:
    try:
        hvd.allgather_object(Unpickled())
    except Alarm:
        assert RANK == 0
    assert hvd.allgather_object(RANK) == [0, 1]


def c10d_copy() -> None:
    alarm_in(torch, "empty")
    check_broken_off(lambda: dist.all_reduce(torch.ones(20, 30).t()), "all_reduce")


def c10d_gather() -> None:
    """Broken off before it comes to what it is made of."""
    alarm_in(dispatching, "_are_plain")
    check_broken_off(lambda: dist.all_gather_into_tensor(torch.empty(2), torch.ones(1)), "all_gather_single")


def ddp() -> None:
    """What the handler raises leaves through backward as it is."""
    layers = torch.nn.Sequential(*[torch.nn.Linear(200, 200, bias=False) for _ in range(6)])
    model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.1)
    session = dist.distributed_c10d._get_default_group().members.session
    model(torch.ones(1, 200)).sum().backward()  # the first step makes one bucket for each layer
    model.zero_grad()
    loss = model(torch.full((1, 200), 1.0 + RANK)).sum()

    looks = [0]

    def waits() -> bool:
        """All operations have begun: at many looks in a row, PyTorch's engine is in no Python code."""
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        inside = frame.f_code.co_name == "_engine_run_backward" and "\n  waits: " in session.report()
        looks[0] = looks[0] + 1 if inside else 0
        return looks[0] == 50

    def alarm() -> None:
        until(waits, "backward waits for the other rank")
        os.kill(os.getpid(), signal.SIGALRM)
        (FOLDER / "sent").touch()

    if RANK == 0:
        threading.Thread(target=alarm).start()
        try:
            loss.backward()  # PyTorch may wait where no handler runs, until the other rank has come
        except Alarm:
            return
        raise AssertionError("the handler's exception is lost")
    until((FOLDER / "sent").exists, "the signal is sent")
    loss.backward()


CALLS = {
    call.__name__: call
    for call in (
        numpy_copy,
        torch_copy,
        second_parameter,
        rows_after_sizes,
        broadcast_object,
        allgather_object,
        optimizer_state,
        unpickled,
    )
}
CALLS_OF_C10D = {call.__name__: call for call in (c10d_copy, c10d_gather, ddp)}

called = sys.argv[2]
if called in CALLS:
    hvd.init()
    CALLS[called]()
else:
    dist.init_process_group("slipstream", init_method=f"file://{FOLDER}/meeting", rank=RANK, world_size=2)
    CALLS_OF_C10D[called]()
