"""Ranks of one job for tests: processes that stay, so that a framework is imported once and not in every test."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from faces.persistent import Processes, named

WORKER = Path(__file__).with_name("rank_process.py")


class Ranks:
    """N processes, each a rank of one job, that run functions of the test files together."""

    def __init__(
        self,
        size: int,
        folder: Path,
        hosts: bool = False,
        worker: Path = WORKER,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``hosts``: each rank pretends to be a host of its own. ``worker``: the script of a rank."""
        self.size = size
        secret = secrets.token_hex(32)

        def job(rank: int, generation: int) -> dict[str, str]:
            return {
                "SLIPSTREAM_RENDEZVOUS": f"file://{folder}/meeting-{size}-{hosts}-{generation}",
                "SLIPSTREAM_SECRET": secret,
                "SLIPSTREAM_SIZE": str(size),
                "SLIPSTREAM_RANK": str(rank),
                **({"SLIPSTREAM_HOST_ID": f"host-{rank}"} if hosts else {}),
                **(environment or {}),
            }

        outputs = folder / f"outputs-{size}-{hosts}"
        outputs.mkdir()
        self._processes = Processes(worker, outputs, job)
        self.stop = self._processes.stop

    def __call__(self, check: Callable[..., Any], *arguments: Any, dying: Collection[int] = ()) -> list[Any]:
        """Runs ``check(*arguments)`` on all ranks; returns their results, or fails with their tracebacks.

        ``dying``: ranks that end by that; all are new afterwards.
        """
        return self._processes.ask([(*named(check), arguments)] * self.size, dying=dying)
