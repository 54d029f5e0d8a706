"""Rank 1 joins at once; rank 0 calls an operation for longer than operations may take, and joins then."""

import time

import torch

import slipstream.torch as hvd

hvd.init()
end, calls = time.monotonic() + 4, 0
while hvd.rank() == 0 and time.monotonic() < end:
    assert hvd.allreduce(torch.ones(3), name="x", op=hvd.Sum).tolist() == [1.0, 1.0, 1.0]
    calls += 1
print("joined", hvd.join(), calls)
