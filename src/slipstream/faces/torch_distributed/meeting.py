"""Where ranks that `slipstream run` has started meet before they do in PyTorch's store."""

from __future__ import annotations

import math
import os
from datetime import timedelta

from slipstream.base.settings import PREFIX, Settings
from slipstream.comm.rendezvous import launched

__all__ = ["meet_at_launcher", "start_limit"]

_CALL = "init_process_group"
_LONGER = (
    f"; to wait longer, pass a longer timeout to {_CALL}, and raise SLIPSTREAM_START_TIMEOUT "
    "(`slipstream run --start-timeout`) if it is set"
)


def start_limit(settings: Settings, timeout: timedelta) -> float:
    """Seconds that ranks may take to come: ``timeout``, that of ``init_process_group``, or less if the job has less."""
    told = f"{PREFIX}START_TIMEOUT" in os.environ
    return min(settings.start_timeout if told else math.inf, timeout.total_seconds())


def meet_at_launcher(size: int, timeout: timedelta) -> None:
    """Waits for all ranks if this process is one of `slipstream run`; raises as `launched.wait_for_all`.

    The arguments are those of ``init_process_group``; a ``size`` of -1 stands for what the environment has. If ranks
    are missing for long, and may take more time, this returns: there may be processes in their place that slipstream
    does not know, and PyTorch's store waits for whoever comes.
    """
    number = str(size) if size >= 0 else os.environ.get("WORLD_SIZE", "")
    rank = launched.rank_of(int(number)) if number.isdigit() else None
    if rank is not None:
        settings = Settings.from_environment()
        launched.wait_for_all(settings, rank, int(number), start_limit(settings, timeout), _CALL, _LONGER)
