"""The last error of the job that a compiled function was left with: frameworks pass on its text alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from slipstream.base.errors import SlipstreamError
from slipstream.comm.membership import job as jobs
from slipstream.comm.membership.failures import retold

__all__ = ["keeping", "of_compiled"]

_kept: list[SlipstreamError] = []


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Within it an error of the job is kept, and goes on."""
    try:
        yield
    except SlipstreamError as error:
        _kept[:] = [retold(error, str(error))]  # without the traceback, which knows the program's objects
        raise


def of_compiled(error: BaseException) -> SlipstreamError | None:
    """The job's error behind one that a compiled function has raised; None if that has another cause."""
    if isinstance(error, SlipstreamError):
        return error
    text = str(error)
    return next((one for one in _kept if str(one) in text), None) or _of_native(text)


def _of_native(text: str) -> SlipstreamError | None:
    """The error that has ended the job, if a native operation of TensorFlow says so."""
    if "node Slipstream" not in text:
        return None
    try:
        jobs.current().session.check()
    except SlipstreamError as failed:
        return failed
    return None
