"""Lets the CPU stand for accelerators in PyTorch's tests.

Most tests of FSDP, distributed checkpoints and pipelines name no kind of device, but are skipped where there are fewer
accelerators than ranks. With CHECKOUT_DEVICES=n they find n of them and run on CPU tensors over gloo.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

__all__ = ["install"]

Decorator = Callable[[Any], Any]


def install() -> None:
    """Must run before a test file is imported."""
    count = int(os.environ.get("CHECKOUT_DEVICES", "0"))
    if not count:
        return
    import torch
    from torch.testing._internal import common_distributed, common_fsdp, common_utils

    skip = common_distributed.skip_if_lt_x_gpu

    def skip_if_lt_x_gpu(x: int, **options: Any) -> Decorator:
        return (lambda test: test) if x <= count else skip(x, **options)

    common_distributed.skip_if_lt_x_gpu = skip_if_lt_x_gpu
    common_distributed.requires_accelerator_dist_backend = lambda backends=None: lambda test: test
    common_fsdp.DEVICE_COUNT = count
    common_utils.get_cycles_per_ms = lambda: 1.0
    torch.accelerator.device_count = lambda: count
    torch.cpu.device_count = lambda: count
    torch.cpu._sleep = lambda cycles: None
