"""Makes a package that is being imported the one of slipstream."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

__all__ = ["stand_in"]

MPI4JAX, MPI4PY = "0.9.1", "4.1.2"  # the versions whose functions these are


def stand_in(name: str) -> None:
    """Gives the package ``name``, which is being imported, its names: "mpi4jax" or "mpi4py"."""
    module: Any = sys.modules[name]
    module.__slipstream__ = True  # for those who have to know that it is not the original
    if name == "mpi4py":
        module.__version__ = MPI4PY
        module.rc = SimpleNamespace(initialize=True, finalize=True, threads=True, thread_level="multiple")
        sys.modules["mpi4py.MPI"] = module.MPI = importlib.import_module("slipstream.faces.mpi.module")
        return
    public = importlib.import_module("slipstream.mpi4jax")
    module.__version__ = MPI4JAX
    module.__all__ = [one for one in public.__all__ if one != "MPI"]
    vars(module).update({one: getattr(public, one) for one in module.__all__})
