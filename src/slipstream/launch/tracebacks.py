"""Tracebacks of ranks, held back until the cause is known: the cause's one is shown, at the end, and only once.

A rank says beforehand what it is about to write to standard error (``base/excepthook.py``). Lines that are what it said
are not shown as they come; files of output have them all the same. If the job goes on without the rank, they are shown
as if they had just come; so are those of the likely cause if the job does not end soon.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from slipstream.base.excepthook import CONSEQUENCE, OWN
from slipstream.launch.blame import named
from slipstream.launch.deadlines import Deadlines
from slipstream.launch.ending import Ending
from slipstream.launch.output import RankOutputs

__all__ = ["Tracebacks"]

_PATIENCE = 10.0  # seconds that it is held back while the job goes on: till its process ends
_MOST = 64 << 10
_PREFIX = re.compile(rb"\[rank\d+\]: ")  # torch.distributed puts it before each line


class _Held:
    """What one rank has said, and has written of it."""

    def __init__(self) -> None:
        self.kind = "an exception"
        self.grade = CONSEQUENCE
        self.text = ""
        self.lines: list[bytes] = []

    def takes(self, line: bytes) -> bool:
        expected = self.text.encode(errors="replace").split(b"\n")
        at = len(self.lines)
        if at >= len(expected) or _PREFIX.sub(b"", line, count=1) != expected[at].rstrip(b"\r"):
            return False
        self.lines.append(line)
        return True


class Tracebacks:
    """Those of the ranks of a job."""

    def __init__(self, outputs: RankOutputs, ending: Ending, deadlines: Deadlines) -> None:
        self._outputs = outputs
        self._ending = ending
        self._deadline = deadlines.add(self._job_goes_on)
        self._held: dict[int, _Held] = {}

    def report(self, rank: int, data: bytes) -> None:
        """Takes what a rank says of an exception; anything that makes no sense is passed over."""
        if self._ending.interrupts:
            return  # they all raise KeyboardInterrupt, and no cause will be told
        for told in _records(data):
            held = self._held.get(rank)
            shown, text = told.get("shown"), told.get("text")
            if isinstance(shown, str):
                if held is None:
                    held = self._held[rank] = _Held()
                    self._outputs.hold_back(rank, held.takes)
                held.text = (held.text + shown)[:_MOST]
            elif held is not None and isinstance(text, str):
                name = text.partition(":")[0].strip().rpartition(".")[2]
                held.kind = name[:80] if name.isidentifier() else held.kind
                held.grade = OWN if told.get("grade") == OWN else held.grade
        if self._held and self._deadline.when is None:
            self._deadline.set(_PATIENCE)

    def of(self, rank: int) -> str:
        """What the rank's traceback says, if it is held back."""
        return self._held[rank].text.rstrip() if rank in self._held else ""

    def others(self, rank: int) -> str:
        """In one line, what ranks beside ``rank`` have raised; "" if nothing is held back of them."""
        kinds: dict[str, list[int]] = {}
        for other in sorted(self._held.keys() - {rank}):
            kinds.setdefault(self._held[other].kind, []).append(other)
        told = ", ".join(f"{kind} on {named(ranks)}" for kind, ranks in kinds.items())
        return f"raised as well: {told} (--full-traceback shows all)" if told else ""

    def show(self, ranks: Iterable[int] | None = None) -> None:
        """Shows what is held back of these ranks, or of all, and holds back no more of them."""
        for rank in sorted(self._held) if ranks is None else ranks:
            held = self._held.pop(rank, None)
            if held is not None:
                self._outputs.hold_back(rank, None)
                self._outputs.show(rank, held.lines)

    def _job_goes_on(self) -> None:
        if self._held and not self._ending.begun:
            self.show([min(self._held, key=lambda rank: self._held[rank].grade)])  # the first of the lowest


def _records(data: bytes) -> Iterator[dict[str, object]]:
    for line in data.splitlines():
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(told, dict):
            yield told
