"""The last error of the job that a compiled function was left with: frameworks pass on its text alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from slipstream.base.errors import SlipstreamError
from slipstream.comm.membership.failures import retold

__all__ = ["causes_of", "keeping", "of_compiled"]

_kept: list[SlipstreamError] = []

causes_of: list[Callable[[str], SlipstreamError | None]] = []
"""What faces know of texts of errors that no Python has raised: the job's error behind one, or None."""


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
    for one in _kept:
        if str(one) in text:
            return one
    return next((found for cause in causes_of if (found := cause(text)) is not None), None)
