"""failing_hook_rank.py STORE, a file that the ranks meet through.

Rank 1 fails in a backward pass whose first bucket has been started by the hook; rank 0 waits in a barrier.

Rank 0 prints the error that it gets.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import slipstream.torch  # noqa: F401  it registers the backend
from slipstream.torch import Compression, comm_hooks


def fail(_: torch.Tensor) -> None:
    raise RuntimeError("the reason")


RANK = int(os.environ["SLIPSTREAM_RANK"])
dist.init_process_group("slipstream", init_method=f"file://{sys.argv[1]}", rank=RANK, world_size=2)
model = torch.nn.Sequential(*[torch.nn.Linear(96, 96) for _ in range(4)])
ddp = DDP(model, bucket_cap_mb=20_000 / 2**20)
state = comm_hooks.CompressionState(model, Compression.topk(0.1))
ddp.register_comm_hook(state, comm_hooks.compress_hook)
for _ in range(2):  # DDP makes new buckets after the first
    ddp(torch.ones(2, 96)).sum().backward()
if RANK == 1:
    loss = ddp(torch.ones(2, 96)).sum()
    model[0].weight.register_hook(fail)
    loss.backward()
try:
    dist.barrier()
except Exception as error:
    print(error, flush=True)
