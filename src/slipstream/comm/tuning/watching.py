"""Whether the network has changed for long, since a choice was made. Pure.

Only what all ranks see counts, and only after several looks in a row. Each new search doubles the time between looks,
and there is a last one: a network that goes to and fro does not keep a job searching.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Watch", "look"]

_SLOWER = 1.3
_LOOKS = 3  # in a row
_FIRST_PERIOD = 256  # operations from one look to the next
_MOST_SEARCHES = 5


@dataclass(frozen=True)
class Watch:
    """``reference``: seconds that the choice took; ``slow``: looks in a row that found it slower; ``period``:
    operations between looks; ``searches``: how often the search has begun again."""

    reference: float
    slow: int = 0
    period: int = _FIRST_PERIOD
    searches: int = 0

    def after_search(self, reference: float) -> Watch:
        """What follows a search that began again."""
        return Watch(reference, 0, 2 * self.period, self.searches + 1)


def look(watch: Watch, seconds: float) -> tuple[Watch, bool]:
    """``seconds``: of the rank that took least. True: search again."""
    if seconds <= _SLOWER * watch.reference:
        return replace(watch, slow=0), False
    slow = watch.slow + 1
    again = slow >= _LOOKS and watch.searches < _MOST_SEARCHES
    return replace(watch, slow=0 if again else min(slow, _LOOKS)), again
