"""One of two ranks: rank 1 drops its optimizer and joins, rank 0 takes another step. "never": rank 1 makes none."""

import sys

import torch

import slipstream.torch as hvd

hvd.init()
if sys.argv[1:] == ["never"] and hvd.rank() == 1:
    try:
        hvd.join()
    except hvd.HorovodInternalError as error:
        print(error)
    sys.exit()
weight = torch.nn.Parameter(torch.zeros(8))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
try:
    for step in range(2):
        if step == 1 and hvd.rank() == 1:
            del optimizer
            hvd.join()
        weight.sum().backward()
        optimizer.step()
except hvd.HorovodInternalError as error:
    print(error)
