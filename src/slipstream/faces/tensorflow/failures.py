"""Errors of the job as TensorFlow's programs expect them: both ours and one of `tf.errors`.

In a graph TensorFlow makes an error of its own of the text (`slipstream.faces.arrays.kept`).
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from slipstream.base.errors import Mismatch, SlipstreamError

__all__ = ["as_framework_error"]


@functools.cache
def _class_of(kind: type[SlipstreamError]) -> Any:
    of_framework = (
        tf.errors.FailedPreconditionError if issubclass(kind, Mismatch) else tf.errors.UnavailableError
    )

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
