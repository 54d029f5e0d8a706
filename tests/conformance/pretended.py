"""Lets the CPU stand for accelerators in PyTorch's tests.

Most tests of FSDP, distributed checkpoints and pipelines name no kind of device, but are skipped where there are fewer
accelerators than ranks. With CHECKOUT_DEVICES=n they find n of them and run on CPU tensors over gloo, also where
they ask for ``cpu:gloo,cuda:nccl``. DistributedDataParallel is not told of devices then.
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
    from torch.testing._internal import common_device_type, common_distributed, common_fsdp, common_utils

    skip = common_distributed.skip_if_lt_x_gpu

    def skip_if_lt_x_gpu(x: int, **options: Any) -> Decorator:
        return (lambda test: test) if x <= count else skip(x, **options)

    common_distributed.skip_if_lt_x_gpu = skip_if_lt_x_gpu
    common_distributed.requires_accelerator_dist_backend = lambda backends=None: lambda test: test
    common_fsdp.DEVICE_COUNT = count
    common_utils.get_cycles_per_ms = lambda: 1.0
    torch.accelerator.device_count = torch.cpu.device_count = lambda: count
    torch.accelerator.set_device_index = torch.cpu._sleep = lambda value: None
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.synchronize = torch.cpu.synchronize

    instantiate = common_device_type.instantiate_device_type_tests

    def on_cpu(tests: type, scope: dict[str, Any], **options: Any) -> None:
        if "cpu" not in options.get("only_for", "cpu"):
            options = {"only_for": "cpu"}
        instantiate(tests, scope, **options)

    common_device_type.instantiate_device_type_tests = on_cpu

    make = torch.nn.parallel.DistributedDataParallel.__init__

    def without_devices(self: Any, module: Any, *_: Any, **options: Any) -> None:
        make(
            self, module, **{name: options[name] for name in options.keys() - {"device_ids", "output_device"}}
        )

    torch.nn.parallel.DistributedDataParallel.__init__ = without_devices

    from torch.testing._internal.distributed._tensor import common_dtensor

    enter = common_dtensor.DTensorTestBase.init_pg

    def over_gloo(self: Any, eager_init: bool, backend: str | None = None) -> None:
        enter(self, eager_init, "gloo")

    common_dtensor.DTensorTestBase.init_pg = over_gloo
