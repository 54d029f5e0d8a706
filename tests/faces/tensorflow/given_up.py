"""Runs of sessions that are given up after their operation has begun, while it waits for the other ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import tensorflow as tf

from slipstream.comm.membership.group import world
from slipstream.comm.negotiation.negotiator import negotiator_of
from slipstream.faces.tensorflow import graph_calls

v1 = tf.compat.v1
_PATIENCE = 60.0  # seconds


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something that another thread does."""
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {_PATIENCE:g} s: {what}"
        time.sleep(0.005)  # a poll of what another thread does


def give_up(session: Any, fetches: Any) -> None:
    """Runs the operation, which the other ranks have not called, with a limit of time; it goes on without the run.

    A busy machine may need longer than the limit to begin it: then it runs anew, with a longer one. A run ends only
    after all that it does in Python, so it is known whether it has begun the operation.
    """
    limit = 250
    with mock.patch.object(graph_calls, "_forget_left", wraps=graph_calls._forget_left) as begins:
        while not begins.called:
            with pytest.raises(tf.errors.DeadlineExceededError):
                session.run(fetches, options=v1.RunOptions(timeout_in_ms=limit))
            limit *= 2
    until(_is_known, "the operation is called by its thread")


def _is_known() -> bool:
    """Whether this rank has called an operation that has not ended."""
    return any(not call.done() for call in list(negotiator_of(world())._calls.values()))
