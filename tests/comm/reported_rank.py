"""A rank of two whose calls differ from those of the other; it prints the errors. reported_rank.py CASE."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import numpy as np

import slipstream

slipstream.init()
rank = slipstream.rank()
case = sys.argv[1]
errors = []


def told(call: Callable[[], object]) -> None:
    try:
        call()
    except slipstream.SlipstreamError as error:
        errors.append(f"{type(error).__name__}: {error}")


def agree_on_groups() -> None:
    """Groups of the same ranks, in two orders, made several times."""
    groups = [slipstream.Group(order) for order in ([0, 1], [1, 0], [0, 1], [1, 0])]
    works = [slipstream.all_gather(np.array([rank]), group=group, async_op=True) for group in groups]
    assert [work.wait().tolist() for work in works] == [[0, 1], [1, 0], [0, 1], [1, 0]]
    for group in groups:
        other = 1 - group.rank
        work = slipstream.send(np.array([rank]), other, group=group, async_op=True)
        assert slipstream.recv(np.zeros(1, int), other, group=group) == 1 - rank
        work.wait()
        slipstream.barrier(group=group)


group = None
if case in ("order", "order of a barrier"):
    group = slipstream.Group([1, 0] if rank else [0, 1])
elif case == "order twice":
    agree_on_groups()
if case == "order":
    told(lambda: slipstream.all_reduce(np.ones(2), group=group))
elif case == "order of a barrier":
    told(lambda: slipstream.barrier(group=group))
elif case == "message":
    if rank == 0:
        told(lambda: slipstream.send(np.ones(3), 1))
        told(slipstream.barrier)
    else:
        told(lambda: slipstream.recv(np.ones(4), 0))
elif case == "barrier":
    told(lambda: slipstream.all_reduce(np.ones(1)) if rank else slipstream.barrier())
    told(lambda: slipstream.all_reduce(np.ones(1)))
sys.stdout.write(f"errors: {json.dumps(errors)}\n")  # one write: the engine's warnings go to the same file
