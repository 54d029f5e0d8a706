"""Numbers that ranks agree on while their operations go on: each element becomes the largest that any rank gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream import _core
from slipstream.base.dtypes import DType, Op
from slipstream.base.own_names import own_name
from slipstream.comm.measuring.runs import compiled
from slipstream.plan.registry import build

__all__ = ["Agreements", "Pending"]


class Pending:
    """An agreement that is under way."""

    def __init__(self, work: _core.Work, values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        self._work, self._values = work, values

    def wait(self) -> list[float]:
        """The numbers; raises the session's error if it fails first. It may be called again."""
        self._work.wait(None)
        return [float(value) for value in self._values]


class Agreements:
    """Of the ranks of ``group``, which is for this alone. All ranks post the same, in the same order."""

    def __init__(self, session: _core.Session, group: _core.Group) -> None:
        self._session, self._group = session, group
        self._plan = compiled(build("all_reduce", "recursive_doubling", group.rank, len(group.ranks)))

    def post(self, values: Sequence[float], what: str) -> Pending:
        """Begins to agree. Nobody waits. ``what``: is compared, and told to people."""
        request = _core.Request(
            group=self._group,
            plan=self._plan,
            operation="all_reduce/tuning",
            dtype=DType.F64,
            op=Op.MAX,
            chunk_bytes=1 << 16,
        )
        memory = np.array(values, dtype=np.float64)
        address = memory.ctypes.data
        work = self._session.submit(request, address, address, memory.size, own_name(what), 0.0, memory)
        return Pending(work, memory)
