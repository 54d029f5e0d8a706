"""The libraries that `allreduce.py` compares, each as a function that binds memory and returns one call.

All of them work in place on float32. Those marked ``shared`` run on memory of `slipstream.empty`; all others
on one and the same ordinary buffer.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import slipstream

__all__ = ["OURS", "PEERS", "Contender", "missing_peers", "open_contenders"]

Array = NDArray[np.float32]

OURS = ("slipstream", "slipstream-shared", "slipstream-torch")
PEERS = ("gloo", "mpi")


@dataclass(frozen=True)
class Contender:
    """``bind(array)`` returns a function that all-reduces ``array`` (f32, sum, in place) and waits for it."""

    name: str
    shared: bool
    bind: Callable[[Array], Callable[[], object]]


def _absent(module: str) -> bool:
    return importlib.util.find_spec(module) is None


def missing_peers(peers: Sequence[str]) -> dict[str, str]:
    """Which of our contenders and of ``peers`` cannot run here, and why."""
    missing = {}
    if _absent("torch"):
        missing["slipstream-torch"] = "torch is not installed"
        if "gloo" in peers:
            missing["gloo"] = "torch is not installed"
    if "mpi" in peers:
        if shutil.which("mpirun") is None:
            missing["mpi"] = "mpirun is not installed"
        elif _absent("mpi4py"):
            missing["mpi"] = "mpi4py is not installed"
    return missing


def open_contenders(names: Sequence[str], folder: str) -> list[Contender]:
    """Starts the libraries in this process; all ranks call it alike. gloo's ranks meet in ``folder``."""
    return [_OPENERS[name](folder) for name in names]


def _numpy(_: str) -> Contender:
    return Contender("slipstream", False, lambda array: lambda: slipstream.all_reduce(array, out=array))


def _shared(_: str) -> Contender:
    return Contender("slipstream-shared", True, lambda array: lambda: slipstream.all_reduce(array, out=array))


def _torch(_: str) -> Contender:
    torch: Any = importlib.import_module("torch")
    face: Any = importlib.import_module("slipstream.torch")
    face.init()

    def bind(array: Array) -> Callable[[], object]:
        tensor = torch.from_numpy(array)
        return lambda: face.allreduce_(tensor, op=face.Sum)

    return Contender("slipstream-torch", False, bind)


def _gloo(folder: str) -> Contender:
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{os.path.join(folder, 'gloo')}",
        rank=slipstream.rank(),
        world_size=slipstream.size(),
    )

    def bind(array: Array) -> Callable[[], object]:
        tensor = torch.from_numpy(array)
        return lambda: distributed.all_reduce(tensor)

    return Contender("gloo", False, bind)


def _mpi(_: str) -> Contender:
    options: Any = importlib.import_module("mpi4py")
    options.rc.thread_level = "funneled"  # its default, multiple, would make Open MPI take locks
    mpi: Any = importlib.import_module("mpi4py.MPI")
    world, in_place = mpi.COMM_WORLD, mpi.IN_PLACE
    if (world.Get_rank(), world.Get_size()) != (slipstream.rank(), slipstream.size()):
        raise RuntimeError("Open MPI and slipstream number the ranks differently")
    return Contender("mpi", False, lambda array: lambda: world.Allreduce(in_place, array))


_OPENERS: dict[str, Callable[[str], Contender]] = {
    "slipstream": _numpy,
    "slipstream-shared": _shared,
    "slipstream-torch": _torch,
    "gloo": _gloo,
    "mpi": _mpi,
}
