"""One rank of test_waits.py: wait_rank.py numpy|torch. Rank 0 prints what a wait says that ends too early."""

from __future__ import annotations

import sys
from datetime import timedelta

import numpy as np

import slipstream


def numpy_job() -> None:
    slipstream.init()
    if slipstream.rank() == 0:
        work = slipstream.all_reduce(np.ones(7), async_op=True)
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
        work = dist.all_reduce(torch.ones(7), async_op=True)
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
