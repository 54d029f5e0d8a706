"""The log of a job's tuning: one line of JSON for each candidate that was measured, and for each choice."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence

from slipstream.base.log import Log
from slipstream.comm.tuning.candidates import Candidate, Traffic

__all__ = ["Journal"]

_log = Log("slipstream.tuning")


class Journal:
    """Appends to the file ``path``; None: to none. A file that cannot be written costs a warning."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    def write(
        self,
        event: str,
        ranks: Sequence[int],
        traffic: Traffic,
        candidate: Candidate,
        seconds: float,
        reason: str = "",
    ) -> None:
        """``event``: measured, chosen, remembered or again. ``seconds``: infinite if they are not known."""
        if self._path is None:
            return
        line = {
            "time": round(time.time(), 3),
            "event": event,
            "ranks": len(ranks),
            "bytes_below": 1 << traffic.magnitude,
            "wire": traffic.wire.name.lower(),
            "algorithm": "reducers" if candidate.way.reducers else candidate.way.algorithm,
            "chunk_bytes": candidate.way.chunk_bytes,
            "lanes": candidate.lanes,
            "seconds": round(seconds, 9) if math.isfinite(seconds) else None,
            "reason": reason,
        }
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            _log.warning(
                "the tuning log %s cannot be written (%s): no more is written", self._path, error.strerror
            )
            self._path = None
