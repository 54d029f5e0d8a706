"""Ranks of a job as sessions of one process, for tests of what a session does by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.base.dtypes import DType, Op
from slipstream.comm.membership import job  # noqa: F401 - gives the native core its exceptions
from slipstream.plan.registry import build

CHUNK = 64 << 10


class Rank:
    """A rank with one group of everybody."""

    def __init__(self, number: int, size: int, **options: float) -> None:
        self.number, self.size = number, size
        chosen = _core.SessionOptions()
        chosen.rank, chosen.size, chosen.job, chosen.secret = number, size, "sessions", b"s" * 32
        for name, value in options.items():
            setattr(chosen, name, value)
        self.session = _core.Session(chosen)
        self.shm = self.session.listen_shm()
        self.port = self.session.listen_tcp(["127.0.0.1"])
        self.group: _core.Group

    def start(self, ranks: list[Rank], transport: str) -> None:
        peers = [("here", transport == "shm", r.shm, ["127.0.0.1"], r.port) for r in ranks]
        self.session.start(peers)
        self.group = self.session.make_group(7, list(range(self.size)))

    def all_reduce(self, array: NDArray[np.float32], timeout: float = 0.0) -> _core.Work:
        """Begins a sum in place. The array must live until it is done."""
        plan = build("all_reduce", "ring", self.number, self.size)
        rows, deps = plan.encode()
        native = _core.Plan.compile(self.number, self.size, plan.blocks, rows, deps)
        address = array.ctypes.data
        request = _core.Request(
            group=self.group,
            plan=native,
            operation="all_reduce/ring",
            dtype=int(DType.F32),
            op=int(Op.SUM),
            chunk_bytes=CHUNK,
        )
        return self.session.submit(request, address, address, array.size, timeout=timeout)


@contextmanager
def ranks(n: int, transport: str = "shm", **options: float) -> Iterator[list[Rank]]:
    """``n`` started ranks; closed at the end, whatever is pending."""
    found = [Rank(r, n, **options) for r in range(n)]
    try:
        for rank in found:
            rank.start(found, transport)
        yield found
    finally:
        for rank in found:
            rank.session.close()
