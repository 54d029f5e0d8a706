"""The parent process of a measurement: starts the ranks, and follows what rank 0 reports."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping
from typing import Any

from slipstream.bench import jobs

__all__ = ["follow", "link_environment"]


def link_environment(*, lanes: int | None, encrypt: bool, wire: str | None = None) -> dict[str, str]:
    """The variables by which a measurement chooses slipstream's TCP links, and what travels over them."""
    environment = {} if lanes is None else {"SLIPSTREAM_LANES": str(lanes)}
    environment |= {} if wire is None else {"SLIPSTREAM_WIRE": wire}
    return environment | ({"SLIPSTREAM_ENCRYPT": "1"} if encrypt else {})


@contextlib.contextmanager
def follow(
    module: str,
    task: str,
    placement: jobs.Placement,
    *,
    mpi: bool,
    limit: float,
    environment: Mapping[str, str],
) -> Generator[Generator[dict[str, Any], None, None]]:
    """Runs ``python -m module task`` as the ranks; gives what rank 0 reports, as it comes (`jobs.run`).

    All contenders have one thread to compute, and do not talk about names of hosts. The ranks end with the block.
    """
    given = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")}
    messages = jobs.run(module, [task], placement, mpi=mpi, limit=limit, environment={**given, **environment})
    with contextlib.closing(messages):
        yield messages
