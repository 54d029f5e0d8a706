"""A signal breaks off the call that runs a batch of two sums, and the other rank dies: nothing is taken for a sum."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch

import slipstream
import slipstream.torch as hvd
from slipstream.comm.membership.group import world
from slipstream.comm.negotiation.negotiator import negotiator_of

sys.path.append(str(Path(__file__).parents[1]))
from comm.interruption import break_off
from comm.negotiation.locking import patient


def begin() -> int:
    """The first sum of the batch; its handle."""
    return hvd.allreduce_async(torch.ones(3), name="a", op=hvd.Sum)


def complete() -> None:
    """The second sum."""
    hvd.allreduce(torch.ones(3), name="b", op=hvd.Sum)


def steps(count: int) -> None:
    for _ in range(count):
        hvd.allreduce(torch.ones(2), name="x")
        handle = begin()
        complete()
        hvd.synchronize(handle)


def batched() -> bool:
    """Whether the order that this rank follows has both sums in one batch."""
    locked = negotiator_of(world())._locked
    return locked is not None and any(len(batch.keys) == 2 for batch in locked.order.batches)


hvd.init()
pids = hvd.allgather_object(os.getpid())
with patient():
    for _ in range(20):  # a busy machine decides the two sums apart now and then
        steps(100)
        if slipstream.all_reduce(np.array([batched()]), "min")[0]:
            break
    steps(100)
    assert batched()
hvd.allreduce(torch.ones(2), name="x")
if hvd.rank() == 1:
    while True:
        signal.pause()
handle = begin()
break_off(complete, world().session)
os.kill(pids[1], signal.SIGKILL)
try:
    print("result", hvd.synchronize(handle))
except slipstream.PeerLost as error:
    print("error", error)
