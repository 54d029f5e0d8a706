"""Trains a residual network in the way of Horovod's ImageNet example, on images that it makes up.

    slipstream run -np 2 -- python examples/horovod/torch_imagenet_style.py --checkpoints /tmp/checkpoints

The learning rate grows with the number of workers, from that of one worker over the first epochs. Worker 0 writes a
checkpoint after each epoch; a run that finds some goes on after the last. After 6 epochs it tells 90 % of the
validation images apart. --model resnet50 --image-size 224 --classes 1000 is the size of ImageNet.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from resnet import SHAPES, resnet
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

# A script that says `import horovod.torch as hvd` needs no change under `slipstream run --horovod`.
import slipstream.torch as hvd


class MadeUpImages(Dataset):
    """``count`` images (3, size, size): the pattern of their class, and much noise; the same on every worker."""

    def __init__(self, count: int, classes: int, size: int, first: int = 0) -> None:
        self.count, self.classes, self.size, self.first = count, classes, size, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        label = number % self.classes
        pattern = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(label))
        noise = torch.Generator().manual_seed((1 << 20) + self.first + number)
        image = F.interpolate(pattern[None], size=(self.size, self.size), mode="bilinear")[0]
        return image + 3 * torch.randn(3, self.size, self.size, generator=noise), label


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=sorted(SHAPES), default="small")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument(
        "--images", type=int, default=480, help="for training; a quarter as many for validation"
    )
    parser.add_argument("--checkpoints", type=Path, help="folder of the checkpoints; none without it")
    parser.add_argument("--batch-size", type=int, default=16, help="images of a worker in a backward pass")
    parser.add_argument("--batches-per-allreduce", type=int, default=1, help="backward passes of a step")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--stop-after", type=int, help="end after this epoch, for a try of the checkpoints")
    parser.add_argument("--base-lr", type=float, default=0.02, help="learning rate of one worker")
    parser.add_argument("--warmup-epochs", type=float, default=1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--wd", type=float, default=0.00005, help="weight decay")
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel as float16")
    parser.add_argument(
        "--use-adasum", action="store_true", help="combine gradients by Adasum, not by their mean"
    )
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    return parser.parse_args()


class Training:
    """The model, its optimizer, and what every step needs."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        passes = args.batches_per_allreduce
        self.scale = passes * (1 if args.use_adasum else hvd.size())
        self.model = resnet(args.model, args.classes)
        optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=args.base_lr * self.scale,
            momentum=args.momentum,
            weight_decay=args.wd,
        )
        self.optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=self.model.named_parameters(),
            compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
            backward_passes_per_step=passes,
            op=hvd.Adasum if args.use_adasum else hvd.Average,
            gradient_predivide_factor=args.gradient_predivide_factor,
        )

    def resume(self) -> int:
        """Takes over the last checkpoint, which worker 0 reads; returns the epoch that comes next."""
        folder: Path | None = self.args.checkpoints
        found = sorted(folder.glob("checkpoint-*.pt")) if folder is not None and hvd.rank() == 0 else []
        epoch: int = hvd.broadcast_object(int(found[-1].stem.split("-")[1]) if found else 0, root_rank=0)
        if found:
            checkpoint = torch.load(found[-1], weights_only=True)
            self.model.load_state_dict(checkpoint["model"])
            self.optimizer.load_state_dict(checkpoint["optimizer"])
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        return epoch

    def save(self, epoch: int) -> None:
        """Writes a checkpoint, on worker 0."""
        folder: Path | None = self.args.checkpoints
        if folder is None or hvd.rank() != 0:
            return
        folder.mkdir(parents=True, exist_ok=True)
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, folder / f"checkpoint-{epoch:04d}.pt")

    def adjust_learning_rate(self, epoch: float) -> None:
        """From that of one worker to ``scale`` times as much during the warm-up; a tenth in the last third."""
        warmup = self.args.warmup_epochs
        if epoch < warmup:
            factor = (1 + epoch * (self.scale - 1) / warmup) / self.scale
        else:
            factor = 1.0 if epoch < self.args.epochs * 2 / 3 else 0.1
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.base_lr * self.scale * factor

    def train(self, epoch: int, loader: DataLoader) -> None:
        """One epoch over this worker's part of the data."""
        self.model.train()
        loader.sampler.set_epoch(epoch)
        passes = self.args.batches_per_allreduce
        steps = math.ceil(len(loader) / passes)
        loss, batches = torch.zeros(()), iter(loader)
        for step in range(steps):
            self.adjust_learning_rate(epoch + step / steps)
            self.optimizer.zero_grad()
            for _ in range(min(passes, len(loader) - step * passes)):
                images, labels = next(batches)
                part = F.cross_entropy(self.model(images), labels) / passes
                part.backward()
                loss += part.detach() / steps
            self.optimizer.step()
        mean = hvd.allreduce(loss, name="loss").item()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {mean:.4f}", flush=True)

    @torch.no_grad()
    def validate(self, epoch: int, loader: DataLoader) -> None:
        """Prints the accuracy over the images of all workers."""
        self.model.eval()
        right = sum((self.model(images).argmax(1) == labels).sum() for images, labels in loader)
        accuracy = hvd.allreduce(right / len(loader.sampler), name="accuracy").item()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: accuracy {accuracy:.4f}", flush=True)


def loader_of(images: MadeUpImages, args: argparse.Namespace, shuffle: bool) -> DataLoader:
    """This worker's part of the images, in batches."""
    sampler = DistributedSampler(images, hvd.size(), hvd.rank(), shuffle=shuffle)
    return DataLoader(images, args.batch_size, sampler=sampler)


def main() -> None:
    """Trains from the last checkpoint on."""
    args = parse_args()
    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(max(1, torch.get_num_threads() // hvd.local_size()))
    seen = loader_of(MadeUpImages(args.images, args.classes, args.image_size), args, shuffle=True)
    unseen = MadeUpImages(args.images // 4, args.classes, args.image_size, first=args.images)
    held_out = loader_of(unseen, args, shuffle=False)
    training = Training(args)
    for epoch in range(training.resume(), args.epochs):
        training.train(epoch, seen)
        training.validate(epoch, held_out)
        training.save(epoch + 1)
        if epoch + 1 == args.stop_after:
            break
    hvd.shutdown()


if __name__ == "__main__":
    main()
