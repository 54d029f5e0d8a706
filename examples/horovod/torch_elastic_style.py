"""Trains on handwritten digits, and goes on when workers die: 96 % of the test images after 12 epochs.

    slipstream run -np 3 --min-np 2 -- python examples/horovod/torch_elastic_style.py

End one of its processes by `kill -9` to see the others go on, or let the script do that: --kill-rank 1 --kill-epoch 3.
"""

from __future__ import annotations

import argparse
import os
import signal

import torch
import torch.nn.functional as F
from digits import Net, data_sets
from torch.utils.data import DataLoader

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
    parser.add_argument("--batches-per-commit", type=int, default=5)
    parser.add_argument("--kill-rank", type=int, default=-1, help="the worker that dies, for a try")
    parser.add_argument("--kill-epoch", type=int, default=1, help="in this epoch, from 0")
    return parser.parse_args()


@torch.no_grad()
def test(model: torch.nn.Module) -> float:
    """The accuracy over the test images, of which each worker has a part."""
    images, labels = data_sets()[1].tensors
    mine = slice(hvd.rank(), None, hvd.size())
    right = (model(images[mine]).argmax(1) == labels[mine]).sum()
    return hvd.allreduce(right, op=hvd.Sum).item() / len(labels)


def main() -> None:
    """Trains, and prints the accuracy after each epoch on worker 0."""
    args = parse_args()
    hvd.init()
    victim = hvd.rank() == args.kill_rank
    torch.manual_seed(42)
    torch.set_num_threads(1)  # workers of a host share its cores
    train_set, _ = data_sets()
    sampler = hvd.elastic.ElasticSampler(train_set, seed=42)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        while state.epoch < args.epochs:
            for number, (images, labels) in enumerate(loader):
                if victim and state.epoch == args.kill_epoch and number == 7:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.zero_grad()
                F.cross_entropy(model(images), labels).backward()
                optimizer.step()
                sampler.record_batch(number, args.batch_size)
                if (number + 1) % args.batches_per_commit == 0:
                    state.commit()
            accuracy = test(model)
            if hvd.rank() == 0:
                print(f"epoch {state.epoch + 1}, {hvd.size()} workers: accuracy {accuracy:.4f}", flush=True)
            state.epoch += 1
            sampler.set_epoch(
                state.epoch
            )  # at the end of the epoch: a reset amid the next one keeps what it recorded
            state.commit()

    def on_reset() -> None:
        for group in optimizer.param_groups:
            group["lr"] = args.lr * hvd.size()

    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
    state.register_reset_callbacks([on_reset])
    train(state)
    hvd.shutdown()


if __name__ == "__main__":
    main()
