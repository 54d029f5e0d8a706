"""What the ranks are asked to measure: given on their command line, as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from slipstream.bench.collective.catalogue import Shape

__all__ = ["MEMORY_FROM", "Task"]

MEMORY_FROM = 4 << 20  # bytes; below this the caches decide, and the speed of memory is no limit


@dataclass(frozen=True)
class Task:
    """A collective, its sizes, and who runs it. ``idle_seconds``: how long an idle engine is watched, 0 for not.

    ``inject_error`` has one rank spoil a result, so that the check can be tested.
    """

    collective: str
    shapes: tuple[Shape, ...]
    dtype: str
    op: str
    root: int
    contenders: tuple[str, ...]
    repeats: int
    warmup: int
    idle_seconds: float = 0.0
    inject_error: bool = False

    def to_json(self) -> str:
        """As text, which `from_json` reads."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """The task that `to_json` wrote."""
        fields = json.loads(text)
        fields["shapes"] = tuple(Shape(**one) for one in fields["shapes"])
        fields["contenders"] = tuple(fields["contenders"])
        return cls(**fields)
