"""Ranks for the tests of `torch.distributed`: up to four processes that stay, with a default group as asked for.

C10D_TEST_BACKEND=gloo in the environment runs the same checks on gloo: what fails there too is wrong in the test.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from faces.persistent import PATIENCE, Processes, named

WORKER = Path(__file__).with_name("c10d_process.py")
BACKEND = os.environ.get("C10D_TEST_BACKEND", "slipstream")


class C10d:
    """Runs functions of the test files on all ranks of a default group."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes = Processes(WORKER, folder)
        self._groups = 0
        self._kept: object = None  # what the default group is that the processes have
        self.stop = self._processes.stop

    def __call__(
        self,
        check: Callable[..., Any],
        *arguments: Any,
        size: int = 2,
        backend: str | None = BACKEND,
        fresh: bool = False,
        store: str = "file",
        timeout: float = 60.0,
        environment: Mapping[str, str] | None = None,
        hosts: bool = False,
        dying: Collection[int] = (),
        patience: float = PATIENCE,
    ) -> list[Any]:
        """Runs ``check(*arguments)`` on ``size`` ranks; returns their results, or fails with their tracebacks.

        The default group of ``backend`` (None: PyTorch's choice), ``timeout`` seconds, is kept for the next check that
        wants the same, unless it is ``fresh``: made for this check and destroyed after it. ``store``: file, or tcp on
        a free port. ``environment``: variables set while the group is made and the check runs; implies fresh.
        ``hosts``: each rank pretends to be a host of its own, too; implies fresh.
        ``dying``: ranks that the check kills. Results must not hold tensors of more than a few MB.
        """
        fresh = fresh or bool(environment) or bool(dying) or hosts
        kind = (backend, size, store, timeout)
        wanted = (kind, self._processes.generation)
        if fresh or wanted != self._kept:
            self._groups += 1
        self._kept = None if fresh else wanted
        group = {
            "kind": kind,
            "meeting": str(self._folder / f"meeting-{self._groups}"),
            "fresh": fresh,
        }
        pretended = [{"SLIPSTREAM_HOST_ID": f"host-{rank}"} if hosts else {} for rank in range(size)]
        groups = [group | {"environment": {**(environment or {}), **more}} for more in pretended]
        requests: list[Any] = [(rank, groups[rank], *named(check), arguments) for rank in range(size)]
        requests += [None] * (self._processes.running - size)  # these leave the group they are in
        return self._processes.ask(requests, dying=dying, patience=patience)[:size]


@pytest.fixture(scope="session")
def c10d(tmp_path_factory: pytest.TempPathFactory) -> Iterator[C10d]:
    """Runs checks on the ranks of a default group: ``c10d(check, *arguments, size=4)``."""
    pytest.importorskip("torch")
    ranks = C10d(tmp_path_factory.mktemp("c10d"))
    yield ranks
    ranks.stop()
