"""The libraries that are compared, each behind the same small interface.

All work on the same ordinary memory, unless their name says otherwise. A library is a module here with
``open_contender(name, place)``; `TABLE` says what it needs.
"""

from __future__ import annotations

import glob
import importlib
import importlib.util
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.bench.collective.contenders.interface import (
    ALGORITHM,
    Bound,
    Call,
    Contender,
    Place,
    Unsupported,
)

__all__ = [
    "ALGORITHM",
    "TABLE",
    "Bound",
    "Call",
    "Contender",
    "Need",
    "Place",
    "Unsupported",
    "missing",
    "need_of",
    "open_contender",
]


@dataclass(frozen=True)
class Need:
    """``module`` here opens it; ``imports``: modules it must find; ``install``: how to get these.

    ``memory`` says whose memory is measured, where it is not the same ordinary memory as of all others.
    """

    module: str
    imports: tuple[str, ...]
    install: str
    memory: str = ""


TABLE = {
    "slipstream": Need("ours", (), ""),
    "slipstream-shared": Need("ours", (), "", "of slipstream.empty"),
    "slipstream-torch": Need("ours", ("torch",), "pip install torch"),
    "gloo": Need("torch_distributed", ("torch",), "pip install torch"),
    "mpi": Need("mpi", ("mpi4py",), "pip install mpi4py, and Open MPI (Debian: openmpi-bin libopenmpi-dev)"),
    "horovod": Need("horovod", ("horovod", "torch"), "build horovod[pytorch] against your PyTorch"),
    "nccl": Need("torch_distributed", ("torch",), "a CUDA build of torch, and NVIDIA GPUs", "of the GPU"),
}


def need_of(name: str) -> Need:
    """What a contender needs: one of `TABLE`, or an algorithm of slipstream's."""
    return TABLE["slipstream" if name.startswith(ALGORITHM) else name]


def missing(names: Sequence[str]) -> dict[str, str]:
    """Which of ``names`` cannot run on this host, and what to install; looks, but imports none of them."""
    found = {}
    for name in names:
        need = need_of(name)
        absent = [module for module in need.imports if importlib.util.find_spec(module) is None]
        if name == "mpi" and shutil.which("mpirun") is None:
            absent.append("mpirun")
        if name == "nccl" and not glob.glob("/dev/nvidia[0-9]*"):
            absent.append("a GPU")
        if absent:
            found[name] = f"{' and '.join(absent)} not found; install: {need.install}"
    return found


def open_contender(name: str, place: Place) -> Contender:
    """Starts the library in this process; all ranks call it alike. Raises ImportError when it does not load."""
    module = importlib.import_module(f"slipstream.bench.collective.contenders.{need_of(name).module}")
    contender: Contender = module.open_contender(name, place)
    return contender
