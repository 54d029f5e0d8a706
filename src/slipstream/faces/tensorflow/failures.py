"""Errors of the job as TensorFlow's programs expect them: both ours and one of `tf.errors`.

In a graph TensorFlow makes an error of its own of a code and the text. `slipstream.faces.arrays.kept` finds the job's
error behind it.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from slipstream.base.errors import Mismatch, SlipstreamError
from slipstream.comm.membership import job as jobs
from slipstream.comm.membership.group import Group
from slipstream.faces.arrays.kept import causes_of
from slipstream.faces.horovod.process_sets import ProcessSet

__all__ = ["as_argument_error", "as_framework_error", "code_in_graph", "group_of"]


_classes: dict[type[SlipstreamError], Any] = {}


def _class_of(kind: type[SlipstreamError]) -> Any:
    found = _classes.get(kind)
    if found is None:
        errors = tf.errors
        of_framework = (
            errors.FailedPreconditionError if issubclass(kind, Mismatch) else errors.UnavailableError
        )
        members = {
            "__module__": kind.__module__,
            "__str__": lambda self: str(self.args[0]),
            "__reduce__": lambda self: (kind, self.args),  # other processes may have no TensorFlow
        }
        found = _classes[kind] = type(kind.__name__, (kind, of_framework), members)
    return found


def as_framework_error(error: SlipstreamError) -> Any:
    """The same error, which is one of `tf.errors` too: FailedPrecondition for a Mismatch, else Unavailable."""
    if isinstance(error, tf.errors.OpError):
        return error
    kind = _class_of(type(error))
    # Python makes a Timeout, which is an OSError, in no other way.
    found = OSError.__new__(kind) if issubclass(kind, OSError) else kind.__new__(kind)
    found.__dict__.update(error.__dict__)
    found.args = error.args
    found._message, found._node_def, found._op = str(error), None, None
    found._error_code, found._experimental_payloads = _code_of(error), {}
    return found


def _code_of(error: SlipstreamError) -> int:
    return int(tf.errors.FAILED_PRECONDITION if isinstance(error, Mismatch) else tf.errors.UNAVAILABLE)


def code_in_graph(error: BaseException) -> int:
    """The code of the error of `tf.errors` that stands for it in a graph, as `native/tensorflow` has it.

    It is UnknownError for a lost rank, as with Horovod: a MonitoredSession of TensorFlow makes its session anew, for
    ever, after AbortedError and UnavailableError.
    """
    if isinstance(error, Mismatch):
        return int(tf.errors.FAILED_PRECONDITION)
    return int(tf.errors.INVALID_ARGUMENT if isinstance(error, ValueError | TypeError) else tf.errors.UNKNOWN)


def _of_native(text: str) -> SlipstreamError | None:
    """The error that has ended the job, if a native operation says so, or one in a function that XLA has compiled."""
    try:
        jobs.current().session.check()
    except SlipstreamError as failed:
        cause = str(failed).partition(";")[0]  # behind it the operation is named that waited
        return failed if "node Slipstream" in text or cause in text else None
    return None


causes_of.append(_of_native)


class _WrongArgument(ValueError, tf.errors.InvalidArgumentError):  # type: ignore[misc]
    """A ValueError that programs of Horovod find as the error which its operations end with."""

    def __init__(self, text: str) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, text)

    def __str__(self) -> str:
        return str(self.message)

    def __reduce__(self) -> tuple[type[ValueError], tuple[str]]:
        return ValueError, (str(self),)  # other processes may have no TensorFlow


def as_argument_error(error: ValueError) -> Any:
    """The same error, which is tf.errors.InvalidArgumentError too, as it is in a graph."""
    return error if isinstance(error, tf.errors.OpError) else _WrongArgument(str(error))


def group_of(process_set: ProcessSet) -> Group:
    """That of the set; `as_argument_error` where this rank has none."""
    try:
        group: Group = process_set.group
    except ValueError as error:
        raise as_argument_error(error) from None
    return group
