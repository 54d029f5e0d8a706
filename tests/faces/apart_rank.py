"""Rank 0 calls an operation that the others do not call: they are in the step of an optimizer. Prints the error."""

import sys

import torch

import slipstream
import slipstream.torch as hvd

hvd.init()
model = torch.nn.Linear(3, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
steps_before = int(sys.argv[1])
try:
    for step in range(steps_before + 1):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        if steps_before > 2:
            hvd.allreduce(torch.ones(1), name="metric")
        if step == steps_before and hvd.rank() == 0:
            hvd.allreduce(torch.ones(1), name="loss")
        optimizer.step()
except slipstream.SlipstreamError as error:
    print(f"error: {error}")
