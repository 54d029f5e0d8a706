"""Trains a network on handwritten digits with Adasum, which bears many workers at the learning rate of one.

    slipstream run -np 8 -- python examples/torch_adasum_digits.py

In 4 epochs one worker reaches an accuracy of 0.955 at this rate. 8 workers take an eighth of its steps, and reach
(means of 3 seeds):

    --op adasum     0.91
    --op average    0.74: the workers' gradients are averaged, so the steps are too small
    --op sum        0.12: the gradients are added, as if the rate were 8 times as large; nothing is learned

At the best rate of each, Adasum and the average end alike here. docs/migrating.md has all rates, also with larger
batches and with momentum.

The digits are real scans (UCI Optical Recognition of Handwritten Digits), which come with scikit-learn.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import slipstream.torch as hvd


def make_model() -> torch.nn.Module:
    """Three linear layers, for images (batch, 1, 8, 8)."""
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )


def load_data(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Training images and labels, then those held out for the test, the same on every worker."""
    digits = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        digits.images[:, np.newaxis] / 16.0,
        digits.target,
        test_size=0.2,
        random_state=0,
        stratify=digits.target,
    )
    images = [torch.from_numpy(array).to(dtype) for array in (train_x, test_x)]
    return [images[0], torch.from_numpy(train_y), images[1], torch.from_numpy(test_y)]


def batches(images: int, epochs: int, batch_size: int) -> Iterator[torch.Tensor]:
    """Which images each step takes, of all workers together: shape (batch_size,), in a new order in each epoch.

    Images that do not fill a batch are left out.
    """
    for epoch in range(epochs):
        order = torch.randperm(images, generator=torch.Generator().manual_seed(epoch))
        yield from order[: images // batch_size * batch_size].split(batch_size)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--op", choices=["adasum", "average", "sum"], default="adasum")
    parser.add_argument("--lr", type=float, default=0.18)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=8, help="images per step of each worker")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--save", metavar="FILE", help="where worker 0 writes the parameters (.npy, flat)")
    return parser.parse_args()


def main() -> None:
    """Trains, tests and prints the accuracy on worker 0."""
    args = parse_args()
    hvd.init()
    if "OMP_NUM_THREADS" not in os.environ:  # the workers of a host share its cores
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    torch.manual_seed(args.seed)
    dtype = getattr(torch, args.dtype)
    train_x, train_y, test_x, test_y = load_data(dtype)

    model = make_model().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        op={"adasum": hvd.Adasum, "average": hvd.Average, "sum": hvd.Sum}[args.op],
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    for batch in batches(len(train_x), args.epochs, args.batch_size * hvd.size()):
        mine = batch[hvd.rank() :: hvd.size()]
        optimizer.zero_grad()
        F.cross_entropy(model(train_x[mine]), train_y[mine]).backward()
        optimizer.step()

    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    if hvd.rank() == 0:
        print(f"accuracy: {accuracy:.4f}", flush=True)
        if args.save:
            np.save(args.save, torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy())
    hvd.shutdown()


if __name__ == "__main__":
    main()
