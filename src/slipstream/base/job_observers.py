"""Functions that are called when this process enters a job: so higher layers learn of jobs that `comm` starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # every `import slipstream` comes here
    from slipstream.base.settings import Settings

__all__ = ["JobObserver", "job_observers", "observe_jobs"]

# Called with each job (`slipstream.comm.membership.job.Job`) that has been entered, and its settings.
JobObserver = Callable[[Any, "Settings"], None]

_observers: list[JobObserver] = []


def observe_jobs(observer: JobObserver) -> None:
    """Calls ``observer`` with every job that this process enters from now on."""
    _observers.append(observer)


def job_observers() -> list[JobObserver]:
    """All observers, in the order in which they were added."""
    return list(_observers)
