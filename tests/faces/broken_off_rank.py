"""One rank of two: broken_off_rank.py FOLDER FACE. FACE is np, hvd, c10d, gather or ddp.

A signal's handler breaks off a call of rank 0: while it copies its input, so that the engine does not have the
operation yet; for ddp while it waits in the backward pass.
"""

from __future__ import annotations

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
from slipstream.faces.torch_distributed import dispatching

RANK = int(os.environ["SLIPSTREAM_RANK"])


def alarming(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, during whose next call on rank 0 the signal comes."""
    left = [RANK == 0]

    def call(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] = False
            signal.raise_signal(signal.SIGALRM)
        return function(*args, **kwargs)

    return call


def copies(call: Callable[[], object], name: str) -> None:
    """Rank 0's call is broken off in its copy. Its next one must not be taken for that by rank 1."""
    if RANK == 0:
        try:
            call()
        except Alarm:
            pass
        else:
            raise AssertionError("nothing broke the call off")
    check_aborted(call, name)


def ddp(folder: Path) -> None:
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
        (folder / "sent").touch()

    if RANK == 0:
        threading.Thread(target=alarm).start()
        try:
            loss.backward()  # PyTorch may wait where no handler runs, until the other rank has come
        except Alarm:
            return
        raise AssertionError("the handler's exception is lost")
    until((folder / "sent").exists, "the signal is sent")
    loss.backward()


folder, face = Path(sys.argv[1]), sys.argv[2]
if face in ("np", "hvd"):
    hvd.init()
else:
    dist.init_process_group("slipstream", init_method=f"file://{folder}/meeting", rank=RANK, world_size=2)
if face == "np":
    np.ascontiguousarray = alarming(np.ascontiguousarray)
    copies(lambda: slipstream.all_reduce(np.ones((20, 30)).T), "all_reduce")
elif face == "hvd":
    torch.empty = alarming(torch.empty)
    copies(lambda: hvd.allreduce_(torch.ones(20, 30).t(), op=hvd.Sum), "allreduce_")
elif face == "c10d":
    torch.empty = alarming(torch.empty)
    copies(lambda: dist.all_reduce(torch.ones(20, 30).t()), "all_reduce")
elif face == "gather":  # broken off before it comes to what it is made of
    dispatching._are_plain = alarming(dispatching._are_plain)  # type: ignore[assignment]
    copies(lambda: dist.all_gather_into_tensor(torch.empty(2), torch.ones(1)), "all_gather_single")
else:
    ddp(folder)
