"""The steps of PyTorch's optimizers are the steps of a training."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from slipstream.base.training import step_ended

__all__ = ["count_step", "watch_optimizers"]

_watching = False


def watch_optimizers() -> None:
    """From now on every step of an optimizer of this process is told to the metrics."""
    global _watching
    if not _watching:
        _watching = True
        register_optimizer_step_post_hook(count_step)


def count_step(optimizer: Any, args: Any, named: Any) -> None:
    """What PyTorch calls after each step."""
    step_ended(id(optimizer))
