"""The steps of one exchange of gradients, as a timeline shows them."""

from __future__ import annotations

import time

from slipstream.base.recording import record, recording

__all__ = ["StepStory"]


class StepStory:
    """Tells when gradients came and when steps ended. One thread at a time."""

    def __init__(self) -> None:
        self._first = self._last = (
            0  # gradients of this step; nanoseconds of the monotonic clock, 0: none yet
        )
        self._before = 0  # the end of the step before
        self._steps = 0

    def gradient(self) -> None:
        """Backward has computed a gradient."""
        if recording():
            self._last = time.monotonic_ns()
            self._first = self._first or self._last

    def stepped(self) -> None:
        """All gradients are reduced: a step ends."""
        self._steps += 1
        if not recording():
            self._first = self._before = 0
            return
        now = time.monotonic_ns()
        if self._first:
            record("gradients", "backward, from the first gradient to the last", self._first, self._last)
        if self._before:
            record("steps", f"step {self._steps}", self._before, now)
        self._first, self._before = 0, now
