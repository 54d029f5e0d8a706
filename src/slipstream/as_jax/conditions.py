"""Where slipstream may change more of JAX than what carries its collectives."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec

__all__ = ["carries_collectives", "has_only_cpus"]


def carries_collectives(env: Mapping[str, str]) -> bool:
    """Whether slipstream carries the collectives of JAX's CPU devices in this process."""
    library = os.path.basename(env.get("MPITRAMPOLINE_LIB", ""))
    return env.get("JAX_CPU_COLLECTIVES_IMPLEMENTATION") == "mpi" and library == "libslipstream_mpi.so"


def has_only_cpus(env: Mapping[str, str]) -> bool:
    """Whether JAX can have no other devices in this process."""
    others = entry_points(group="jax_plugins") or any(map(find_spec, ("jax_plugins", "libtpu")))
    return env.get("JAX_PLATFORMS") == "cpu" or not others
