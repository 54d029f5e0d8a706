"""Prints the files of slipstream whose functions run in one step of a `DistributedOptimizer`, as rank 0."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch

import slipstream.torch as hvd


def main() -> None:
    """The first steps choose plans and buckets; the last one is recorded."""
    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    seen = set()

    def record(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and "/slipstream/" in name:
            seen.add(name.rpartition("/slipstream/")[2])

    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 64)).sum()
        sys.setprofile(record if step == 2 else None)
        loss.backward()
        optimizer.step()
        sys.setprofile(None)
    if hvd.rank() == 0:
        print(*sorted(seen))


if __name__ == "__main__":
    main()
