"""Operations that MXNet's engine runs: a call returns at once, and MXNet orders them with what it computes.

A call takes its place in a line (`lines`), so arrays may become ready in another order on each rank. Where an operation
fails, its arrays carry the error: MXNet raises it once, for whoever waits first for one of them or for what is computed
from them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import mxnet
from mxnet.libinfo import find_lib_path

from slipstream import _core
from slipstream.base.log import Log
from slipstream.faces.mxnet.asked import Asked

__all__ = ["can_push", "push"]

_NAIVE = "NaiveEngine"  # MXNet's engine that runs everything in the calling thread
_log = Log("slipstream")


def push(line: _core.MxnetLine, asked: Asked, inputs: Sequence[Any], results: Sequence[Any]) -> bool:
    """Has MXNet's engine run an operation from each array to its result; ``results is inputs`` where it is in place.

    False, and nothing is done, where that is not possible: then it has to wait (`waits`).
    """
    if not (can_push() and all(isinstance(one, mxnet.nd.NDArray) for one in inputs)):
        return False
    handles = [one.handle.value for one in inputs]
    targets = handles if results is inputs else [one.handle.value for one in results]
    return line.push(handles, targets, *asked)


@functools.cache
def can_push() -> bool:
    """Whether MXNet has threads that run operations, and is a release that is known."""
    problem = _core.mxnet_prepare(find_lib_path()[0])
    if problem:
        _log.warning("operations wait for MXNet instead of running in its engine: %s", problem)
    return not problem and os.environ.get("MXNET_ENGINE_TYPE") != _NAIVE
