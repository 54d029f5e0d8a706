"""DeepSpeed with ZeRO: `dist_backend="slipstream"`."""

import os

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
from ranks_agree import check, data

# DeepSpeed would compile a module of its own for the ranks of one host, and wait for that without an end.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend="slipstream")
x, y = data()
model = torch.nn.Linear(5, 1)
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    },
)
rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
losses = []
for step in range(20):
    begin = 8 * (step % (len(x) // (8 * size)))
    rows = slice(size * begin + rank, size * (begin + 8), size)
    loss = torch.nn.functional.mse_loss(engine(x[rows]), y[rows])
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
check(model, losses[0], losses[-1])
