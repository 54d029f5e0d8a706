"""How errors of the engine become Python's: with the line that waits, and with why this process leaves."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType

from slipstream.base import errors

__all__ = ["call_site", "called_at", "last_words", "make_error", "parting_words", "retold", "sendable"]

_MOST_WORDS = 500
_elsewhere = threading.local()
_FAILED_BEFORE = "the job has failed before: "  # so the engine begins
_NOT_THE_CALLER = (
    "slipstream",
    "torch",
    "tensorflow",
    "keras",
    "tf_keras",
    "jax",
    "numpy",
    "contextlib",
    "typing_extensions",
    "threading",
    "concurrent",
)


def make_error(code: int, rank: int, host: str, text: str) -> BaseException:
    """The exception for an error of the engine; its text ends with the caller's line, such as "(train.py:42)".

    Not if the job had failed before the call: that line is not the cause.
    """
    site = "" if text.startswith(_FAILED_BEFORE) else call_site()
    if site:
        text = f"{text} ({site})"
    if code == 1:
        return errors.PeerLost(text, rank, host)
    return errors.CODES.get(code, errors.SlipstreamError)(text)


def _is_callers(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] not in _NOT_THE_CALLER


def call_site() -> str:
    """The caller's line, such as "train.py:42"; in a thread of slipstream's, that of `called_at`, or ""."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_callers(frame):
        frame = frame.f_back
    if frame is None:
        return getattr(_elsewhere, "site", "")
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


@contextlib.contextmanager
def called_at(site: str) -> Iterator[None]:
    """This thread of slipstream's asks for the outcome of an operation that was called at ``site``."""
    _elsewhere.site = site
    try:
        yield
    finally:
        _elsewhere.site = ""


def _origin(traceback: TracebackType | None) -> str:
    """The innermost line of the caller's in a traceback, such as " at data.py:40"."""
    found = ""
    while traceback is not None:
        if _is_callers(traceback.tb_frame):
            found = f" at {os.path.basename(traceback.tb_frame.f_code.co_filename)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found


def _raised(error: BaseException, then: str = "") -> str:
    try:
        said = str(error)
    except Exception:  # the others learn the rest all the same
        said = "its text cannot be made"
    text = f": {said}"[:_MOST_WORDS] if said else ""
    return sendable(f"raised {type(error).__name__}{_origin(error.__traceback__)}{then}{text}")


def retold(error: errors.SlipstreamError, text: str) -> errors.SlipstreamError:
    """An error of the same class with this text; one of a lost rank names that rank, too."""
    if isinstance(error, errors.PeerLost):
        return errors.PeerLost(text, error.rank, error.host)
    return type(error)(text)


def sendable(text: str) -> str:
    """``text`` with escapes for what UTF-8 does not have, such as bytes of file names that are no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def last_words() -> str:
    """What ends this process, if it is an exception that nobody caught and that is no error of the job's; else ""."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None or isinstance(error, errors.SlipstreamError) or hasattr(sys, "ps1"):
        return ""
    return _raised(error)


def parting_words() -> str:
    """What other ranks are told of one that leaves in a ``finally`` or ``except``; "" if nothing was raised."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        code = 0 if error.code is None else error.code
        return f"finished (exit code {code if isinstance(code, int) else 1}) and left the job"
    if error is None or isinstance(error, errors.SlipstreamError | GeneratorExit):
        return ""
    return _raised(error, " and left the job")
