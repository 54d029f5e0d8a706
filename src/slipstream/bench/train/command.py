"""What the command does: starts the ranks, follows their turns, and makes one record of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from slipstream.bench import jobs
from slipstream.bench.measurement import follow
from slipstream.bench.record import head
from slipstream.bench.train.options import Options
from slipstream.bench.train.summary import summarise

__all__ = ["measure", "wrong_gradients"]


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
    start: dict[str, Any] = head("train")
    end: dict[str, Any] = {}
    turns: list[dict[str, Any]] = []
    with follow(
        "slipstream.bench.train.rank",
        json.dumps(dataclasses.asdict(options)),
        placement,
        mpi=_needs_mpi(options),
        limit=limit,
        environment=environment,
    ) as messages:
        for message in messages:
            kind = message.pop("kind")
            if kind == "start":
                start |= message
            elif kind == "turn":
                turns.append(message)
                progress(
                    f"turn {message['repeat'] + 1} of {options.repeats}: {message['contender']} "
                    f"{1e3 * min(message['steps']):.1f}-{1e3 * max(message['steps']):.1f} ms a step"
                )
            else:
                end = message
    if not end:
        raise jobs.JobFailed("the ranks ended without a result")
    return summarise(start, turns, end, link_rate)


def wrong_gradients(record: Mapping[str, Any]) -> list[str]:
    """Every contender that had wrong gradients, and how many; empty when all were right."""
    return [f"{name}: {row['wrong']}" for name, row in record["contenders"].items() if row["wrong"]]


def _needs_mpi(options: Options) -> bool:
    if not {"mpi", "horovod"} & set(options.contenders):
        return False
    from slipstream.bench.train.contenders import mpi_ranks  # imports torch

    return mpi_ranks(options.contenders)
