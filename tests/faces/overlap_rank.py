"""A rank of test_torch_overlap.py: the ranks have different numbers of batches, and end with a step under way."""

import torch

import slipstream.torch as hvd


def train(overlaps: bool) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        overlap_forward=model if overlaps else None,
    )
    for _ in range((2, 5, 3)[hvd.rank()]):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    hvd.join()
    return model, optimizer


hvd.init()
expected, _ = train(overlaps=False)
model, optimizer = train(overlaps=True)
optimizer.settle()
for mine, other in zip(model.parameters(), expected.parameters(), strict=True):
    assert torch.equal(mine, other)
print("the same parameters")
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
