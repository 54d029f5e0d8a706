"""One of two ranks: rank 1 drops its optimizer and joins, rank 0 takes another step.

"other": rank 1 joins before its first step; afterwards it makes an optimizer of other parameters than rank 0 has.
"""

import sys

import torch

import slipstream.torch as hvd

hvd.init()
other = sys.argv[1:] == ["other"]
weight = torch.nn.Parameter(torch.zeros(5 if other and hvd.rank() == 1 else 8))
try:
    if other and hvd.rank() == 1:
        hvd.join()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
    for step in range(2):
        if step == 1 and not other and hvd.rank() == 1:
            del optimizer
            hvd.join()
        weight.sum().backward()
        optimizer.step()
        if step == 0 and other and hvd.rank() == 0:
            hvd.join()
except hvd.HorovodInternalError as error:
    print(error)
