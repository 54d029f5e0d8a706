"""Errors as programs of Horovod expect them: those of arguments, and those that MXNet's engine raises of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from mxnet.base import MXNetError, register_error

from slipstream.base import errors
from slipstream.base.errors import SlipstreamError
from slipstream.comm.membership import job as jobs
from slipstream.comm.membership.failures import retold

__all__ = ["error_of", "wrong_arguments"]

# By their status in slipstream.h.
_KINDS: dict[int, type[SlipstreamError]] = {
    1: errors.PeerLost,
    2: errors.Mismatch,
    3: errors.Timeout,
    4: errors.Refused,
    5: errors.Aborted,
}


class _WrongArgument(ValueError, MXNetError):  # type: ignore[misc]
    """A ValueError that programs of Horovod find as MXNetError."""

    def __reduce__(self) -> tuple[type[ValueError], tuple[str]]:
        return ValueError, (str(self),)  # other processes may have no MXNet


@contextlib.contextmanager
def wrong_arguments() -> Iterator[None]:
    """Within it a ValueError becomes one that is an MXNetError, too."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, MXNetError):
            raise
        raise _WrongArgument(str(error)) from None


def _made_by(kind: type[SlipstreamError]) -> Callable[[str], SlipstreamError]:
    """Makes of a text of MXNet's what ``kind`` begins with, and what else the job knows of the error."""

    def make(text: str) -> SlipstreamError:
        told = text.removeprefix(f"{kind.__name__}: ")
        try:
            jobs.current().session.check()
        except SlipstreamError as error:
            if type(error) is kind:
                return retold(error, told)
        return kind(told)

    return make


def error_of(status: int, text: str) -> SlipstreamError:
    """The error of an operation that has ended with this status of slipstream.h."""
    return _made_by(_KINDS.get(status, SlipstreamError))(text)


def _register() -> None:
    """MXNet raises an error by the name that its text begins with, as native/mxnet writes it."""
    kinds: list[type[SlipstreamError]] = [SlipstreamError, *_KINDS.values()]
    for kind in kinds:
        register_error(kind.__name__, _made_by(kind))


_register()
