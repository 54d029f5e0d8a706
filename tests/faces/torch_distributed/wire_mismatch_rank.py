"""One of two hosts that disagree about a tensor that travels in fewer bits: wire_mismatch_rank.py CASE FILE."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

import slipstream

CASES = {  # elements, dtype and operation of rank 0 and of rank 1
    "elements": ((20_030, torch.float32, "SUM"), (19_969, torch.float32, "SUM")),  # as many blocks
    "op": ((20_000, torch.float32, "SUM"), (20_000, torch.float32, "AVG")),
    "f16": ((20_000, torch.float32, "SUM"), (20_000, torch.float16, "SUM")),
    "bf16": ((20_000, torch.float32, "SUM"), (20_000, torch.bfloat16, "SUM")),
    "small": ((20_000, torch.float32, "SUM"), (10_000, torch.float32, "SUM")),  # this one travels as it is
}

rank = int(os.environ["SLIPSTREAM_RANK"])
dist.init_process_group("slipstream", store=dist.FileStore(sys.argv[2], 2), rank=rank, world_size=2)
count, dtype, op = CASES[sys.argv[1]][rank]
try:
    dist.all_reduce(torch.ones(count, dtype=dtype), getattr(dist.ReduceOp, op))
    raise AssertionError("they disagree")
except slipstream.Mismatch as error:
    print(error)
