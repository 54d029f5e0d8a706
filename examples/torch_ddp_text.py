"""Trains a small GPT on the source text of Python's standard library with DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/torch_ddp_text.py
    slipstream run -np 2 -- python examples/torch_ddp_text.py

Nothing in it is about slipstream but the word in init_process_group. One worker and N workers see the same
batches and walk down the same loss curve, and so do those who say --backend gloo. Ends with code 1 if the
validation loss misses its target.
"""

from __future__ import annotations

import sys

import text_model
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> int:
    """Trains, validates and prints the loss on worker 0; the exit code."""
    args = text_model.parse_args(__doc__)
    dist.init_process_group(args.backend)
    torch.set_num_threads(1)  # in so small a model, threads would mostly wait for each other
    torch.manual_seed(0)
    model = DistributedDataParallel(text_model.GPT())
    text = text_model.load_text()
    losses = text_model.train(model, text, args.steps, args.batch_size, args.lr)
    code = text_model.finish(losses, text_model.validate(model, text, args.batch_size), args)
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main())
