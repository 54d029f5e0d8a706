"""Ignite, unchanged: `slipstream run --replace gloo`."""

import ignite.distributed as idist
import torch
from ignite.engine import create_supervised_trainer
from ranks_agree import check, data


def work(_):
    x, y = data()
    torch.manual_seed(idist.get_rank())
    model = idist.auto_model(torch.nn.Linear(5, 1))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    loader = idist.auto_dataloader(torch.utils.data.TensorDataset(x, y), batch_size=8)
    loss = torch.nn.MSELoss()
    before = loss(model.module(x), y).item()
    create_supervised_trainer(model, optimizer, loss).run(loader, max_epochs=10)
    check(model, before, loss(model.module(x), y).item())


with idist.Parallel(backend="gloo") as parallel:
    parallel.run(work)
