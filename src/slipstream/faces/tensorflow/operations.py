"""The native operations (native/tensorflow), which are added to TensorFlow when a graph needs one for the first time.

SlipstreamStart begins an operation of the engine (`native`), SlipstreamOpen makes a ticket for one of Python's
(`graph_calls`), and SlipstreamWait waits for either. They are there too when a graph is loaded that has them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from slipstream import _core
from slipstream.base.log import Log
from slipstream.comm.membership import job as jobs

__all__ = ["Opener", "apply_operation", "are_added", "set_opener"]

Opener = Callable[[str], tuple[int, int, str, str] | None]

_RELEASES = (2, 16), (2, 21)  # of TensorFlow, whose asynchronous kernels native/tensorflow knows
_log = Log("slipstream")
_lock = threading.RLock()  # a signal's handler may build a graph, too
_openers: list[Opener] = []
_tried = False
_apply: Any = None


def set_opener(open_line: Opener) -> None:
    """``open_line``: has the ranks agree that there is a line; returns what is wrong."""
    _openers[:] = [open_line]


def apply_operation() -> Any:
    """What adds one to the graph: (its type, inputs and attributes by name); None where there can be none."""
    global _apply, _tried
    with _lock:
        if not _tried:
            _tried = True
            try:
                _apply = _added()
            except (AttributeError, ImportError, OSError, RuntimeError) as error:
                _log.warning("operations in TensorFlow's graphs go through Python: %s", error)
    return _apply


def are_added() -> bool:
    """Whether TensorFlow has them."""
    return _apply is not None


def _open(line: str) -> tuple[int, int, str, str] | None:
    return _openers[0](line)


def _added() -> Any:
    from tensorflow.python.framework import auto_control_deps
    from tensorflow.python.framework.op_def_library import apply_op

    release = tuple(int(part) for part in tf.__version__.split(".")[:2])
    if not _RELEASES[0] <= release <= _RELEASES[1]:
        raise RuntimeError(f"native operations are for TensorFlow 2.16 to 2.21, and this is {tf.__version__}")
    folder = tf.sysconfig.get_lib()
    problem = _core.tensorflow_operations(f"{folder}/libtensorflow_framework.so.2", _open)
    if problem:
        raise RuntimeError(problem)
    # No context of TensorFlow's is made here: after that a program cannot choose its threads and devices any more.
    config = tf.compat.v1.ConfigProto(device_count={"CPU": 1, "GPU": 0}, inter_op_parallelism_threads=1)
    rank = jobs.rank() if jobs.is_initialized() else 0
    problem = _core.tensorflow_cancellation(
        f"{folder}/libtensorflow_cc.so.2", config.SerializeToString(), rank
    )
    # A function runs it even if nobody uses the result, so its errors are raised; and nothing waits for it in vain.
    unordered = frozenset(auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS)
    auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS = unordered | {"SlipstreamWait"}
    if problem:
        _log.info("operations in TensorFlow's graphs do not end when their step is cancelled: %s", problem)
    return apply_op
