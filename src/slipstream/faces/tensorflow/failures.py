"""Errors of the job as TensorFlow's programs expect them: both ours and one of `tf.errors`.

In a graph TensorFlow makes an error of its own of the text. The last one of the job is kept, so that elastic training
knows what has failed.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from slipstream.base.errors import Mismatch, SlipstreamError
from slipstream.comm.membership.failures import retold

__all__ = ["as_framework_error", "keep", "of_graph"]

_kept: list[SlipstreamError] = []


@functools.cache
def _class_of(kind: type[SlipstreamError]) -> Any:
    of_framework = tf.errors.FailedPreconditionError if issubclass(kind, Mismatch) else tf.errors.UnavailableError

    def text(self: Any) -> str:
        return str(self.args[0])

    members = {"__module__": kind.__module__, "__str__": text, "__reduce__": SlipstreamError.__reduce__}
    return type(kind.__name__, (kind, of_framework), members)


def as_framework_error(error: SlipstreamError) -> SlipstreamError:
    """The same error, which is one of `tf.errors` too: FailedPrecondition for a Mismatch, else Unavailable."""
    if isinstance(error, tf.errors.OpError):
        return error
    found: Any = _class_of(type(error)).__new__(_class_of(type(error)))
    found.__dict__.update(error.__dict__)
    found.args = error.args
    found._message, found._node_def, found._op = str(error), None, None
    found._error_code, found._experimental_payloads = _code_of(found), {}
    return found  # type: ignore[no-any-return]


def _code_of(error: Any) -> int:
    return int(tf.errors.FAILED_PRECONDITION if isinstance(error, Mismatch) else tf.errors.UNAVAILABLE)


def keep(error: SlipstreamError) -> None:
    """Keeps the error that a graph is about to fail with."""
    _kept[:] = [error]


def of_graph(error: BaseException) -> SlipstreamError | None:
    """The job's error behind one that a graph has raised; None if it has another cause."""
    if isinstance(error, SlipstreamError):
        return error
    found = next((one for one in _kept if str(one) in str(error)), None)
    return None if found is None else retold(found, str(found))  # type: ignore[return-value]
