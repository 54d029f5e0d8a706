"""Keeps torch.compile out of the process group: Dynamo would trace its methods like a model's code.

Marks code objects, as ``torch.compiler.disable`` would, but without importing Dynamo, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import Any

import torch

__all__ = ["skip"]


def skip(classes: Iterable[type]) -> None:
    """Has Dynamo run the methods and properties of ``classes``, and what they call, as they are.

    PyTorch before 2.6 has no way to say so; there the methods are traced, or break the graph.
    """
    frames: Any = getattr(torch._C._dynamo, "eval_frame", None)
    if not hasattr(frames, "set_code_exec_strategy"):
        return
    strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    for owner in classes:
        for member in vars(owner).values():
            function = getattr(member, "fget", None) or member
            while function is not None:  # and what it wraps
                if isinstance(function, FunctionType):
                    frames.set_code_exec_strategy(function.__code__, strategy)
                function = getattr(function, "__wrapped__", None)
