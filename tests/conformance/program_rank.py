"""One rank of a program of other people: program_rank.py [--as-gpu|--as-installed] SCRIPT|-m MODULE [ARGUMENT...]

The program finds `stand_ins` for packages that are not installed, the names that NumPy and Python have dropped and,
with --as-gpu, a GPU as which the CPU serves. With --as-installed it finds no stand-ins. Nothing of it is changed.
"""

from __future__ import annotations

import collections.abc
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

STAND_INS = Path(__file__).resolve().parent / "stand_ins"
DROPPED_BY_NUMPY = {
    "bool": bool,
    "float": float,
    "int": int,
    "object": object,
    "Inf": np.inf,
    "alltrue": np.all,
    "mat": np.asmatrix,
    "product": np.prod,
}


def cpu_as_gpu() -> None:
    """`cuda` of tensors and modules returns what is there; devices named "cuda", or by a number, are the CPU."""

    def stay(value: Any, *_: Any, **__: Any) -> Any:
        return value

    def to_cpu(move: Any) -> Any:
        def to(value: Any, target: Any, *rest: Any, **options: Any) -> Any:
            on_gpu = isinstance(target, int) or "cuda" in str(target)
            return move(value, "cpu" if on_gpu else target, *rest, **options)

        return to

    torch.Tensor.cuda = torch.nn.Module.cuda = stay  # type: ignore[assignment,method-assign]
    torch.Tensor.to, torch.nn.Module.to = to_cpu(torch.Tensor.to), to_cpu(torch.nn.Module.to)  # type: ignore
    torch.Tensor.pin_memory = stay  # type: ignore[assignment,method-assign]
    for name in ("manual_seed", "set_device", "synchronize"):  # a function for each, which PyTorch insists on
        setattr(torch.cuda, name, lambda *_: None)
    torch.cuda.device_count = lambda: 1


def main() -> None:
    arguments = sys.argv[1:]
    for name, value in DROPPED_BY_NUMPY.items():
        if name not in np.__dict__:
            setattr(np, name, value)
    for name in collections.abc.__all__:  # where Python had them before 3.10
        setattr(collections, name, getattr(collections.abc, name))
    if arguments[0] == "--as-gpu":
        cpu_as_gpu()
        del arguments[0]
    if arguments[0] == "--as-installed":
        del arguments[0]
    else:
        sys.path.append(str(STAND_INS))
    if arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).absolute().parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
