"""A job of `slipstream run` as a cluster of JAX: ``jax.distributed.initialize()`` finds its arguments by itself."""

from __future__ import annotations

import importlib
import os
from typing import Any

__all__ = ["add"]

_COORDINATOR, _RANK, _SIZE = "SLIPSTREAM_JAX_COORDINATOR", "SLIPSTREAM_RANK", "SLIPSTREAM_SIZE"
_LOCAL_RANK = "SLIPSTREAM_LOCAL_RANK"


def add() -> None:
    """Has JAX ask this cluster first: the job of a launcher may run within one of Slurm, say, with other numbers.

    JAX's class of clusters is no public interface. If it is not what it was, nothing happens, and
    ``jax.distributed.initialize`` needs its arguments.
    """
    base: Any = getattr(importlib.import_module("jax._src.clusters"), "ClusterEnv", None)
    known = getattr(base, "_cluster_types", None)
    if isinstance(base, type) and isinstance(known, list):
        made = type("SlipstreamCluster", (_Place, base), {"name": "slipstream"})
        known[:] = [made, *(one for one in known if one is not made)]


class _Place:
    """What JAX's ``ClusterEnv`` is asked."""

    opt_in_only_method = False

    @classmethod
    def is_env_present(cls) -> bool:
        return {_COORDINATOR, _RANK, _SIZE} <= os.environ.keys()

    @classmethod
    def get_coordinator_address(
        cls, timeout_secs: int | None = None, override_coordinator_port: str | None = None
    ) -> str:
        address, _, port = os.environ[_COORDINATOR].rpartition(":")
        coordinator = f"{address}:{override_coordinator_port or port}"
        if address in (
            "127.0.0.1",
            "[::1]",
        ):  # else JAX listens on all interfaces, for a job of one host as well
            os.environ.setdefault("JAX_COORDINATOR_BIND_ADDRESS", coordinator)
        return coordinator

    @classmethod
    def get_process_count(cls) -> int:
        return int(os.environ[_SIZE])

    @classmethod
    def get_process_id(cls) -> int:
        return int(os.environ[_RANK])

    @classmethod
    def get_local_process_id(cls) -> int | None:
        """The GPU of this process, where there are any."""
        return int(os.environ[_LOCAL_RANK]) if _LOCAL_RANK in os.environ else None
