"""Mixed precision with a GradScaler: mixed_precision.py OUT EPOCHS CHECKPOINT.

The samples of one batch overflow, on one rank: the scaler has to leave that step out on all ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path

import horovod.torch as hvd
import torch

OVERFLOWS = 5  # the batch


def build():
    torch.manual_seed(1)
    layers = [torch.nn.Linear(6, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.fp16
    )
    return model, optimizer, torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)


def step(model, optimizer, scaler, x, y):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        prediction = model(x)
    loss = torch.nn.functional.mse_loss(prediction.float(), y)
    scaler.scale(loss).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()


def main(out: str, epochs: int, checkpoint: Path) -> None:
    hvd.init()
    model, optimizer, scaler = build()
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
    begin = 0
    if checkpoint.exists():
        state = torch.load(checkpoint) if hvd.rank() == 0 else None
        state = hvd.broadcast_object(state, root_rank=0)
        begin = state.pop("epoch")
        for name, saved in state.items():
            parts[name].load_state_dict(saved)
    x = torch.randn(72, 6)
    y = x[:, :1] * x[:, 1:2]
    x[12 * OVERFLOWS] = 1e38
    for epoch in range(begin, epochs):
        for number in range(len(x) // 12):
            mine = slice(12 * number + hvd.rank(), 12 * (number + 1), hvd.size())
            before = scaler.get_scale()
            step(model, optimizer, scaler, x[mine], y[mine])
            assert (scaler.get_scale() < before) == (number == OVERFLOWS)
        hvd.allreduce(torch.ones(1))
        if hvd.rank() == 0:
            torch.save(
                {"epoch": epoch + 1} | {name: one.state_dict() for name, one in parts.items()}, checkpoint
            )
    torch.save(model.state_dict(), f"{out}.{hvd.rank()}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
