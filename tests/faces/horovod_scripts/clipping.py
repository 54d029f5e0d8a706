"""Gradients are clipped between `synchronize` and `step`: clipping.py OUT EPOCHS CHECKPOINT.

The way of language models: Adam, the norm of all gradients clipped, a checkpoint that every rank reads.
"""

import os
import sys

import horovod.torch as hvd
import torch
import torch.nn as nn

hvd.init()
out, epochs, checkpoint = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.manual_seed(7)
torch.set_default_dtype(torch.float64)

tokens = torch.randint(11, (48, 6))
model = nn.Sequential(nn.Embedding(11, 8), nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 11))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

start = 0
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint)
    start = saved["epoch"]
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])

for epoch in range(start, epochs):
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(epoch))
    for batch in order.view(-1, 12):
        mine = tokens[batch[hvd.rank() :: hvd.size()]]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(mine), mine[:, 0])
        loss.backward()
        optimizer.synchronize()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        assert norm > 0.5, "nothing is clipped"
        with optimizer.skip_synchronize():
            optimizer.step()
    hvd.barrier()
    if hvd.rank() == 0:
        state = {"epoch": epoch + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, checkpoint)

torch.save(model.state_dict(), f"{out}.{hvd.rank()}")
hvd.shutdown()
