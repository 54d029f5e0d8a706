"""Trains on handwritten digits in the way of Horovod's MNIST example: 96 % of the test images after 12 epochs.

    slipstream run -np 2 -- python examples/horovod/torch_mnist_style.py

Each worker has its own part of the data (DistributedSampler) and batches of --batch-size; the learning rate grows with
the number of workers. One worker with N times the batch size and learning rate makes the same steps as N workers.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from digits import Net, data_sets
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

# A script that says `import horovod.torch as hvd` needs no change under `slipstream run --horovod`.
import slipstream.torch as hvd


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=16, help="images of a worker in a step")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one worker")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--log-interval", type=int, default=20, help="steps from message to message")
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel as float16")
    parser.add_argument(
        "--use-adasum", action="store_true", help="combine gradients by Adasum, not by their mean"
    )
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    return parser.parse_args()


def make_optimizer(model: torch.nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    """The model's, with gradients from all workers."""
    scale = 1 if args.use_adasum else hvd.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * scale, momentum=args.momentum)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )


def train(
    epoch: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader,
    log_interval: int,
) -> None:
    """One epoch over this worker's part of the data."""
    model.train()
    loader.sampler.set_epoch(epoch)
    for step, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % log_interval == 0 and hvd.rank() == 0:
            print(f"epoch {epoch + 1}, step {step}: loss {loss.item():.4f}", flush=True)


@torch.no_grad()
def test(model: torch.nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Mean loss and accuracy over the test images of all workers."""
    model.eval()
    loss, right, count = 0.0, 0.0, 0
    for images, labels in loader:
        logits = model(images)
        loss += F.cross_entropy(logits, labels, reduction="sum").item()
        right += (logits.argmax(1) == labels).sum().item()
        count += len(labels)
    return metric_average(loss / count, "loss"), metric_average(right / count, "accuracy")


def metric_average(value: float, name: str) -> float:
    """The mean of the workers' values: each has equally many images."""
    return hvd.allreduce(torch.tensor(value, dtype=torch.float64), name=name).item()


def main() -> None:
    """Trains, and prints loss and accuracy of the test images after each epoch on worker 0."""
    args = parse_args()
    hvd.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # workers of a host share its cores
    train_set, test_set = data_sets(getattr(torch, args.dtype))
    train_sampler = DistributedSampler(train_set, hvd.size(), hvd.rank(), seed=args.seed)
    test_sampler = DistributedSampler(test_set, hvd.size(), hvd.rank(), shuffle=False)
    train_loader = DataLoader(train_set, args.batch_size, sampler=train_sampler)
    test_loader = DataLoader(test_set, 60, sampler=test_sampler)

    model = Net().to(getattr(torch, args.dtype))
    optimizer = make_optimizer(model, args)
    for epoch in range(args.epochs):
        train(epoch, model, optimizer, train_loader, args.log_interval)
        loss, accuracy = test(model, test_loader)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}, test: loss {loss:.8f}, accuracy {accuracy:.4f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
