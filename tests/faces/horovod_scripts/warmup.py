"""Learning-rate warm-up, schedulers and a checkpoint with all of it: warmup.py OUT EPOCHS CHECKPOINT."""

from __future__ import annotations

import argparse
import math
import os

import horovod.torch as hvd
import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("epochs", type=int)
parser.add_argument("checkpoint")
parser.add_argument("--warmup-epochs", type=int, default=2)
parser.add_argument("--base-lr", type=float, default=0.01)
args = parser.parse_args()

hvd.init()
images = torch.randn(60, 1, 6, 6, generator=torch.Generator().manual_seed(2)).double()
labels = images.flatten(1).sum(1).gt(0).long()
steps_per_epoch = 5
batch_of_a_worker = len(images) // steps_per_epoch // hvd.size()


def lr_factor(step: int) -> float:
    """What the learning rate of 12 images is multiplied by: it grows at first, then falls as a cosine."""
    warmup = args.warmup_epochs * steps_per_epoch
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / 40))


torch.manual_seed(3)
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 2)
).double()
lr = args.base_lr * batch_of_a_worker * hvd.size()
optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)  # of what is wrapped below
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), num_groups=2)

resume_from_epoch = 0
if hvd.rank() == 0 and os.path.exists(args.checkpoint):
    checkpoint = torch.load(args.checkpoint)
    resume_from_epoch = checkpoint["epoch"]
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
resume_from_epoch = hvd.broadcast(
    torch.tensor(resume_from_epoch), root_rank=0, name="resume_from_epoch"
).item()
scheduler.load_state_dict(hvd.broadcast_object(scheduler.state_dict(), root_rank=0))
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)

for epoch in range(resume_from_epoch, args.epochs):
    sampler = torch.utils.data.DistributedSampler(labels, hvd.size(), hvd.rank(), seed=9)
    sampler.set_epoch(epoch)
    for batch in torch.tensor(list(sampler)).split(batch_of_a_worker):
        optimizer.zero_grad(set_to_none=epoch % 2 == 0)
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        scheduler.step()
    if hvd.rank() == 0:
        state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        torch.save(
            {name: one.state_dict() for name, one in state.items()} | {"epoch": epoch + 1}, args.checkpoint
        )

torch.save(model.state_dict(), f"{args.out}.{hvd.rank()}")
