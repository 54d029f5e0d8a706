"""A training script for torchrun: trains a small model; the first time, one rank kills itself on the way.

Writes what it sees to files named after the event, the attempt and the rank, as output of ended workers may be lost.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEPS = 12


def main() -> None:
    """``elastic_rank.py FOLDER VICTIM STEP``: rank VICTIM dies at STEP of attempt 0 (-1: nobody; waits for a death)."""
    folder, victim, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    begin = time.monotonic()
    dist.init_process_group("slipstream")
    dist.all_reduce(torch.ones(1))
    formed = time.monotonic() - begin
    rank, size = dist.get_rank(), dist.get_world_size()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    def note(event: str, text: str) -> None:
        unfinished = folder / f"unfinished-{event}-{attempt}-{rank}"
        unfinished.write_text(text)
        unfinished.rename(folder / f"{event}.{attempt}.{rank}")

    note("formed", f"{formed:.3f} {size} {os.getpid()}")
    torch.manual_seed(0)
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = 0
        while step < STEPS or (victim < 0 and size > 1):
            if (rank, step, attempt) == (victim, last, 0):
                note("died", str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(torch.full((2, 8), float(rank + step % 3))).square().mean().backward()
            optimizer.step()
            step += 1
    except RuntimeError as error:
        note("failed", f"{time.time()} {error!r}")
        raise
    note("ended", str(sum(parameter.sum().item() for parameter in model.parameters())))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
