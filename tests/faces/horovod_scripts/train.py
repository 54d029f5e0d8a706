"""A script as Horovod's users write them: it knows nothing of slipstream."""

import json
import tempfile
from pathlib import Path

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

BATCH = 8


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def main():
    hvd.init()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    inputs = torch.randn(32, 5)
    data = TensorDataset(inputs, inputs @ torch.arange(5.0).unsqueeze(1))
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
    loader = DataLoader(data, batch_size=BATCH // hvd.size(), sampler=sampler)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    if hvd.rank() > 0:
        torch.nn.init.zeros_(model[0].weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.none, op=hvd.Average
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        scheduler.step()
    if hvd.rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, Path(folder, "checkpoint")
            )
            state = torch.load(Path(folder, "checkpoint"))
        model.load_state_dict(state["model"])
    epochs = hvd.broadcast_object(3 if hvd.rank() == 0 else None, root_rank=0)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    print(
        json.dumps(
            {"rank": hvd.rank(), "weights": weights, "loss": metric_average(loss.item(), "loss") / epochs}
        )
    )


if __name__ == "__main__":
    main()
