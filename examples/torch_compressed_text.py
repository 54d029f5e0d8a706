"""Trains the small GPT of torch_ddp_text.py with gradients that travel in fewer bits.

    slipstream run -np 2 -- python examples/torch_compressed_text.py --compression powersgd
    slipstream run -np 4 -H one:1,two:1,three:1,four:1 -- python examples/torch_compressed_text.py --compression int8

int8, f8, f16 and bf16 act between hosts; topk and powersgd everywhere. Biases, norms and small tensors stay exact.
Ends with code 1 if the validation loss misses its target.
"""

from __future__ import annotations

import argparse
import sys

import text_model
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from slipstream.torch import Compression, comm_hooks

COMPRESSIONS = {
    "exact": Compression.exact,
    "bf16": Compression.bf16,
    "f16": Compression.fp16,
    "f8": Compression.f8,
    "int8": Compression.int8,
    "topk": Compression.topk(0.01),
    "powersgd": Compression.powersgd(rank=4),
}


def main() -> int:
    """Trains, validates and prints the loss on worker 0; the exit code."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--compression", choices=COMPRESSIONS, default="powersgd")
    chosen, others = parser.parse_known_args()
    sys.argv[1:] = others
    args = text_model.parse_args(__doc__)
    dist.init_process_group(args.backend)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(text_model.GPT())
    state = comm_hooks.CompressionState(model, COMPRESSIONS[chosen.compression])
    model.register_comm_hook(state, comm_hooks.compress_hook)
    text = text_model.load_text()
    losses = text_model.train(model, text, args.steps, args.batch_size, args.lr)
    code = text_model.finish(losses, text_model.validate(model, text, args.batch_size), args)
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main())
