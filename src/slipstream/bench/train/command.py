"""What the command does: starts the ranks, follows their turns, and makes one record of them."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable, Mapping
from typing import Any

from slipstream.bench import jobs, machine
from slipstream.bench.train.options import Options
from slipstream.bench.train.summary import summarise

__all__ = ["measure"]

_RANK = "slipstream.bench.train.rank"


def measure(
    options: Options,
    placement: jobs.Placement,
    *,
    limit: float,
    link_rate: float | None,
    environment: Mapping[str, str],
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Runs the measurement; returns the record of `summary.summarise`. Raises jobs.JobFailed.

    ``limit``: seconds for all of it. ``link_rate``: bit/s of each host's link, for the limit beside the figures.
    ``environment``: variables for all ranks. ``progress`` is told of every turn.
    """
    start: dict[str, Any] = {}
    end: dict[str, Any] = {}
    turns: list[dict[str, Any]] = []
    messages = jobs.run(
        _RANK,
        [json.dumps(dataclasses.asdict(options))],
        placement,
        mpi=_needs_mpi(options),
        limit=limit,
        environment={"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **environment},
    )
    for message in messages:
        start = message.get("start", start)
        end = message.get("end", end)
        if "turn" in message:
            turn = message["turn"]
            turns.append(turn)
            progress(
                f"turn {turn['repeat'] + 1} of {options.repeats}: {turn['contender']} "
                f"{1e3 * min(turn['steps']):.1f}-{1e3 * max(turn['steps']):.1f} ms a step"
            )
    if not end:
        raise jobs.JobFailed("the ranks ended without a result")
    head = {"benchmark": "train", "date": datetime.date.today().isoformat(), "machine": machine.describe()}
    return {**head, **summarise(start, turns, end, link_rate)}


def _needs_mpi(options: Options) -> bool:
    if not {"mpi", "horovod"} & set(options.contenders):
        return False
    from slipstream.bench.train.contenders import mpi_ranks  # imports torch

    return mpi_ranks(options.contenders)
