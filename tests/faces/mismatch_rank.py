"""A rank whose tensors have as many elements as those of the others, in other shapes: prints the error it gets."""

import sys

import torch

import slipstream
import slipstream.torch as hvd

hvd.init()
odd = hvd.rank() == 1
matrix = torch.ones((2, 3) if odd else (3, 2))
group = [torch.ones(3), torch.full((5,), 2.0)]
try:
    if sys.argv[1] == "grouped":
        hvd.grouped_allreduce(group[::-1] if odd else group)
    else:
        getattr(hvd, sys.argv[1])(matrix, *([0] if sys.argv[1] == "broadcast" else []))
    slipstream.barrier()
except slipstream.Mismatch as error:
    print(error)
