"""Who wants to know when this process enters a job: higher layers hear of it, and `slipstream.comm` knows none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # every `import slipstream` comes here
    from slipstream.base.settings import Settings

__all__ = ["Attendant", "attend", "attendants"]

# Called with each job (`slipstream.comm.membership.job.Job`) that has been entered, and its settings.
Attendant = Callable[[Any, "Settings"], None]

_attendants: list[Attendant] = []


def attend(attendant: Attendant) -> None:
    """Has ``attendant`` called with every job from now on."""
    _attendants.append(attendant)


def attendants() -> list[Attendant]:
    """All of them, in the order in which they came."""
    return list(_attendants)
