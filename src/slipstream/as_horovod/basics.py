"""Horovod's functions of the job as methods of one object, which some programs build for themselves."""

from __future__ import annotations

from typing import Any

from slipstream.faces.horovod import job, process_sets
from slipstream.faces.horovod.absent import hint

__all__ = ["BASICS", "HorovodBasics"]


class HorovodBasics:
    """``HorovodBasics(path, name).rank()`` and so on: the arguments once named a native library, and mean nothing."""

    def __init__(self, *_: Any) -> None:
        self.Average, self.Sum, self.Adasum, self.Min, self.Max, self.Product = range(6)

    def __getattr__(self, name: str) -> Any:
        if name not in job.__all__:
            instead = hint(name, job.__all__) or ": dir() of it lists what it has"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{instead}")
        return getattr(job, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *job.__all__})

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return process_sets.registered()


BASICS = HorovodBasics()
