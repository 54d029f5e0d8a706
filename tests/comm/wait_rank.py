"""One rank of test_waits.py: wait_rank.py numpy|torch. Rank 0 prints what a wait says that ends too early."""

from __future__ import annotations

import sys
from datetime import timedelta
from functools import partial

import numpy as np
from interruption import until, waits

import slipstream


def numpy_job() -> None:
    slipstream.init()
    if slipstream.rank() == 0:
        work = slipstream.all_reduce(np.ones(7), async_op=True)
        until(partial(waits, slipstream.world().session), "it waits for the other rank")
        try:
            work.wait(0.2)
        except slipstream.Timeout as error:
            print(error, flush=True)
        slipstream.send(np.ones(1), 1)  # now it may come
        work.wait()
    else:
        slipstream.recv(np.ones(1), 0)
        slipstream.all_reduce(np.ones(7))
    slipstream.shutdown()


def torch_job() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("slipstream")
    if dist.get_rank() == 0:
        session = dist.distributed_c10d._get_default_group().members.session
        work = dist.all_reduce(torch.ones(7), async_op=True)
        until(partial(waits, session), "it waits for the other rank")
        try:
            work.wait(timedelta(seconds=0.2))
        except slipstream.Timeout as error:
            print(error, flush=True)
        dist.send(torch.ones(1), 1)
        work.wait()
    else:
        dist.recv(torch.ones(1), 0)
        dist.all_reduce(torch.ones(7))
    dist.destroy_process_group()


numpy_job() if sys.argv[1] == "numpy" else torch_job()
