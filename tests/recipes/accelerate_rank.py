"""Hugging Face accelerate, unchanged: `slipstream run --replace gloo`."""

import torch
from accelerate import Accelerator
from ranks_agree import check, data

accelerator = Accelerator(cpu=True)
torch.manual_seed(accelerator.process_index)  # DDP makes the models one
model = torch.nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for _ in range(5):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.gather(loss.detach()).mean().item())
check(model, losses[0], losses[-1])
accelerator.end_training()
