"""Runs steps that fail on one rank alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import slipstream
import slipstream.tensorflow as hvd

__all__ = ["until_the_end"]


def until_the_end(step: Callable[[int], Any], factor: float = 1.0) -> str:
    """Runs steps until the job has ended; the text of that. All sums must be right until then."""
    for number in range(1, 24):
        with contextlib.suppress(tf.errors.InvalidArgumentError, ValueError):  # of this rank alone
            try:
                found = step(number)
            except tf.errors.UnknownError as error:
                return str(error)
            except tf.errors.FailedPreconditionError as error:
                try:
                    slipstream.barrier()
                except slipstream.SlipstreamError:
                    return str(error)
                continue
            np.testing.assert_array_equal(found, factor * number * hvd.size())
    return "the job has not ended"
