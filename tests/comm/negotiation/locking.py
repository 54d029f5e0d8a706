"""What a test needs that wants a locked order, on a machine that other processes keep busy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import slipstream
from slipstream.comm.negotiation import locked, negotiator, order

_PATIENCE = 30.0  # seconds


@contextlib.contextmanager
def patient() -> Iterator[None]:
    """No rank leaves a locked order, or cuts it, because the machine makes another one late, or this one."""
    before = locked._PATIENCE, locked._LONG_PATIENCE, negotiator._GAP
    locked._PATIENCE = locked._LONG_PATIENCE = negotiator._GAP = _PATIENCE
    try:
        yield
    finally:
        locked._PATIENCE, locked._LONG_PATIENCE, negotiator._GAP = before


def until_locked(step: Callable[[], Any]) -> None:
    """Steps, equally often on all ranks, until the order is locked on all of them and stays so."""
    mine = negotiator.negotiator_of(slipstream.world())
    # Nothing is under way, so all ranks do this between the same two decisions. The job's orders of before may have
    # ended early, and then the next one would have to repeat up to 4096 times.
    cycles = mine._rounds._cycles
    cycles._needed = cycles._runs._needed = order._ALIKE
    with patient():
        for _ in range(10):
            for _ in range(20):
                step()
            rounds = mine.rounds
            for _ in range(10):
                step()
            lasts = mine.locked and mine.rounds == rounds
            if slipstream.all_reduce(np.array([lasts]), "min")[0]:
                return
    raise AssertionError("the order does not stay locked")


def count_alone() -> list[str]:
    """What runs alone from now on, by name."""
    mine, names = negotiator.negotiator_of(slipstream.world()), []
    run = mine._run_alone

    def counted(locked: Any, flight: Any, *rest: Any) -> Any:
        names.append(flight.batch.requests[0].name)
        return run(locked, flight, *rest)

    mine._run_alone = counted  # type: ignore[method-assign]
    return names
