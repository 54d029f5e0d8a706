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


def meet_at_launcher(rank: int, size: int, timeout: timedelta) -> None:
    """Waits for all ranks if this process is one of `slipstream run`, by the arguments of ``init_process_group``.

    -1 stands for a number that the environment has. Raises as `launched.wait_for_all`.
    """
    given = (rank, "RANK"), (size, "WORLD_SIZE")
    numbers = [str(number) if number >= 0 else os.environ.get(name, "") for number, name in given]
    if not all(number.isdigit() for number in numbers):
        return  # PyTorch says what is missing
    rank, size = map(int, numbers)
    if launched.is_rank(rank, size):
        settings = Settings.from_environment()
        limit = start_limit(settings, timeout)
        launched.wait_for_all(settings, rank, size, limit, _CALL, _LONGER)
