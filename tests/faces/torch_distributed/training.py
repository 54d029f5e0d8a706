"""A small model, data for every rank, and what one process alone makes of them: what the users are compared with."""

from __future__ import annotations

from collections.abc import Callable

import torch

STEPS = 3
ROWS = 4  # samples of a rank in a step
WIDTH = 12

Loss = Callable[[torch.nn.Module, int, int], torch.Tensor]


def model(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """The same parameters in every process."""
    generator = torch.Generator().manual_seed(7)
    made = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 32),
        torch.nn.Tanh(),
        torch.nn.Linear(32, 20),
        torch.nn.Tanh(),
        torch.nn.Linear(20, 4),
    )
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    return made.to(dtype)


def batch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (ROWS, WIDTH) and targets (ROWS, 4) of a rank in a step."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(ROWS, WIDTH, generator=generator)
    return inputs.to(dtype), torch.randn(ROWS, 4, generator=generator).to(dtype)


def loss_of(module: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    """The mean squared error of a rank's batch."""
    inputs, targets = batch(rank, step, next(module.parameters()).dtype)
    return torch.nn.functional.mse_loss(module(inputs), targets)


def train(
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    rank: int,
    steps: int = STEPS,
    loss: Loss = loss_of,
) -> torch.nn.Module:
    """Trains on the batches of one rank."""
    for step in range(steps):
        optimizer.zero_grad()
        loss(module, rank, step).backward()
        optimizer.step()
    return module


def trained_alone(
    size: int,
    steps: int = STEPS,
    make: Callable[[torch.nn.Module], torch.optim.Optimizer] = lambda m: torch.optim.SGD(
        m.parameters(), lr=0.1
    ),
    loss: Loss = loss_of,
) -> torch.nn.Module:
    """The model after training on the batches of all ranks in this process."""
    alone = model()
    optimizer = make(alone)
    for step in range(steps):
        optimizer.zero_grad()
        (sum(loss(alone, rank, step) for rank in range(size)) / size).backward()  # type: ignore[union-attr]
        optimizer.step()
    return alone


def assert_same_parameters(got: torch.nn.Module, want: torch.nn.Module, tolerance: float = 1e-5) -> None:
    """Compares the parameters in order, whatever they are called."""
    pairs = zip(got.parameters(), want.parameters(), strict=True)
    for number, (ours, theirs) in enumerate(pairs):
        torch.testing.assert_close(
            ours.detach(),
            theirs.detach(),
            rtol=tolerance,
            atol=tolerance,
            msg=lambda m, n=number: f"parameter {n}: {m}",
        )
