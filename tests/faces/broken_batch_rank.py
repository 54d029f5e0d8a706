"""A signal breaks off the call that runs a batch of two sums, and the other rank dies: nothing is taken for a sum."""

import os
import signal

import torch

import slipstream
import slipstream.torch as hvd
from slipstream.comm.membership.group import world
from slipstream.comm.negotiation.negotiator import negotiator_of


class Alarm(Exception):
    """What the handler raises."""


def ring(*_: object) -> None:
    raise Alarm


def begin() -> int:
    """The first sum of the batch; its handle."""
    return hvd.allreduce_async(torch.ones(3), name="a", op=hvd.Sum)


def complete() -> None:
    """The second sum."""
    hvd.allreduce(torch.ones(3), name="b", op=hvd.Sum)


hvd.init()
for _ in range(100):
    hvd.allreduce(torch.ones(2), name="x")
    handle = begin()
    complete()
    hvd.synchronize(handle)
locked = negotiator_of(world())._locked
assert locked is not None
assert any(len(batch.keys) == 2 for batch in locked.order.batches)
pids = hvd.allgather_object(os.getpid())
for _ in range(100):
    hvd.allreduce(torch.ones(2), name="x")
    handle = begin()
    complete()
    hvd.synchronize(handle)
hvd.allreduce(torch.ones(2), name="x")
if hvd.rank() == 1:
    while True:
        signal.pause()
signal.signal(signal.SIGALRM, ring)
handle = begin()
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    complete()
except Alarm:
    os.kill(pids[1], signal.SIGKILL)
try:
    print("result", hvd.synchronize(handle))
except slipstream.PeerLost as error:
    print("error", error)
