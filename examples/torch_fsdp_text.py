"""Trains a small GPT on the source text of Python's standard library with fully_shard (FSDP2).

    torchrun --nproc-per-node 2 examples/torch_fsdp_text.py
    slipstream run -np 2 -- python examples/torch_fsdp_text.py

Every worker keeps 1/N of the parameters, of their gradients and of the optimizer's state. The same model, data
and curve as torch_ddp_text.py; the options are the same, too.
"""

from __future__ import annotations

import sys

import text_model
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> int:
    """Trains, validates and prints the loss on worker 0; the exit code."""
    args = text_model.parse_args(__doc__)
    dist.init_process_group(args.backend)
    torch.set_num_threads(1)  # in so small a model, threads would mostly wait for each other
    torch.manual_seed(0)
    model = text_model.GPT()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    text = text_model.load_text()
    losses = text_model.train(model, text, args.steps, args.batch_size, args.lr)
    code = text_model.finish(losses, text_model.validate(model, text, args.batch_size), args)
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main())
