"""Measures training steps on random images: images per second of a worker, and of all.

    slipstream run -np 2 -- python examples/horovod/torch_synthetic_benchmark.py --model small --image-size 32

--model resnet50 and images of 224 pixels, the defaults, are what others report; on processors that takes minutes.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from resnet import SHAPES, resnet

# A script that says `import horovod.torch as hvd` needs no change under `slipstream run --horovod`.
import slipstream.torch as hvd


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=sorted(SHAPES), default="resnet50")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32, help="images of a worker in a step")
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel as float16")
    parser.add_argument(
        "--use-adasum", action="store_true", help="combine gradients by Adasum, not by their mean"
    )
    return parser.parse_args()


def main() -> None:
    """Measures, and prints on worker 0."""
    args = parse_args()
    hvd.init()
    torch.set_num_threads(max(1, torch.get_num_threads() // hvd.local_size()))
    model = resnet(args.model, 1000)
    scale = 1 if args.use_adasum else hvd.size()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01 * scale),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size)
    labels = torch.randint(1000, (args.batch_size,))

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()

    steps(args.num_warmup_batches)
    rates = []
    for number in range(args.num_iters):
        begin = time.perf_counter()
        steps(args.num_batches_per_iter)
        rates.append(args.batch_size * args.num_batches_per_iter / (time.perf_counter() - begin))
        if hvd.rank() == 0:
            print(f"iteration {number + 1}: {rates[-1]:.1f} img/sec per worker", flush=True)
    of_all = hvd.allgather(torch.tensor([rates])).sum(0).tolist()
    if hvd.rank() == 0:
        print(f"img/sec per worker: {spread(rates)}")
        print(f"total img/sec on {hvd.size()} workers: {spread(of_all)}", flush=True)
    hvd.shutdown()


def spread(rates: list[float]) -> str:
    """The mean, and in which distance of it 95 % of a normal distribution lie."""
    return f"{statistics.fmean(rates):.1f} +- {1.96 * statistics.pstdev(rates):.1f}"


if __name__ == "__main__":
    main()
