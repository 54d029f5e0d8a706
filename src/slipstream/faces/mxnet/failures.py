"""Arguments that do not fit, as the error that programs of Horovod expect: one of MXNet's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mxnet.base import MXNetError

__all__ = ["wrong_arguments"]


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
