"""Trains a small convolutional network on handwritten digits, data-parallel over all workers.

    slipstream run -np 2 -- python examples/torch_digits.py

The digits are real scans (UCI Optical Recognition of Handwritten Digits), which come with scikit-learn. One
worker and N workers with the same --batch-size see the same batches and walk down the same loss curve: try
--dtype float64 --loss-file.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import slipstream.torch as hvd


class Net(torch.nn.Module):
    """Two convolutions and two linear layers, for images (batch, 1, 8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = torch.nn.Linear(32 * 4 * 4, 64)
        self.fc2 = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns logits (batch, 10)."""
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


def load_data(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images and labels, then those held out for the test, the same on every worker."""
    digits = load_digits()
    images = (digits.images / 16.0)[:, np.newaxis]
    split = train_test_split(images, digits.target, test_size=0.2, random_state=0, stratify=digits.target)
    train_x, test_x, train_y, test_y = (torch.from_numpy(array) for array in split)
    return train_x.to(dtype), train_y, test_x.to(dtype), test_y


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per step, over all workers")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--loss-file", type=Path, help="write the mean loss of every step there, as JSON")
    return parser.parse_args()


def main() -> None:
    """Trains, tests and prints the accuracy on worker 0."""
    args = parse_args()
    hvd.init()
    if "OMP_NUM_THREADS" not in os.environ:  # the workers of a host share its cores
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    torch.manual_seed(0)
    dtype = getattr(torch, args.dtype)
    train_x, train_y, test_x, test_y = load_data(dtype)

    model = Net().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    steps = -(-len(train_x) // args.batch_size)
    bar = tqdm(total=args.epochs * steps, unit="step", disable=hvd.rank() != 0)
    losses: list[float] = []
    for epoch in range(args.epochs):
        order = torch.randperm(len(train_x), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(args.batch_size):
            mine = batch[hvd.rank() :: hvd.size()]
            optimizer.zero_grad()
            # Workers' gradients are averaged with equal weights. Each divides its sum by an equal share of
            # the batch, so the average is right even when the batch does not divide evenly.
            loss = F.cross_entropy(model(train_x[mine]), train_y[mine], reduction="sum")
            loss = loss * hvd.size() / len(batch)
            loss.backward()
            optimizer.step()
            if args.loss_file:
                losses.append(hvd.allreduce(loss.detach()).item())
            bar.update()
        bar.set_postfix(epoch=epoch + 1, loss=f"{loss.item():.4f}")
    bar.close()

    with torch.no_grad():
        mine = slice(hvd.rank(), None, hvd.size())
        right = (model(test_x[mine]).argmax(1) == test_y[mine]).sum()
    accuracy = hvd.allreduce(right, op=hvd.Sum).item() / len(test_y)
    if hvd.rank() == 0:
        if args.loss_file:
            args.loss_file.write_text(json.dumps(losses))
        print(f"accuracy: {accuracy:.4f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
