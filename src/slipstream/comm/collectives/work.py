"""The handle of a running operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slipstream import _core
from slipstream.base.arguments import as_seconds
from slipstream.base.errors import Timeout

__all__ = ["DONE", "Received", "Work"]


class Work:
    """A running operation. It keeps the memory it works on alive, also if the handle is dropped before the end.

    >>> work = slipstream.all_reduce(numpy.ones(3), async_op=True)
    >>> work.wait()
    array([2., 2., 2.])
    """

    __slots__ = ("_finish", "_native", "_result")

    def __init__(
        self, native: _core.Work | None, result: Any = None, finish: Callable[[], Any] | None = None
    ) -> None:
        self._native = native
        self._result = result
        self._finish = finish

    def done(self) -> bool:
        """True once `wait` would not block (also if the operation failed)."""
        return self._native is None or self._native.done()

    def wait(self, timeout: float | None = None) -> Any:
        """Waits and returns the operation's result; all errors of the operation are raised here.

        ``timeout`` (seconds) limits this wait, not the operation: Timeout is raised, the operation goes on, and
        the job has not failed. It goes on, too, if a signal handler raises an exception here. The work may be
        waited for again.
        """
        if timeout is not None:
            timeout = as_seconds("timeout", timeout)
        native = self._native
        if native is not None:
            while not native.wait(timeout):
                if waits := native.waits():
                    raise Timeout(
                        f"the operation has not ended within {timeout:g} s and goes on: call wait() again. "
                        f"SLIPSTREAM_TIMEOUT, or `slipstream run --timeout`, limits the time of an operation. {waits}"
                    )
            self._native = None
        if self._finish is not None:
            self._result = self._finish()
            self._finish = None
        return self._result

    def entitle(self, title: str) -> None:
        """Has reports of waits, here and on other ranks, call the operation this. The first title stays."""
        if self._native is not None:
            self._native.entitle(title)

    @property
    def native(self) -> _core.Work | None:
        """The engine's handle; None once the operation is known to be done."""
        return self._native

    def giving(self, result: Any) -> Work:
        """This work, made to give ``result``."""
        self._result = result
        return self

    def then(self, finish: Callable[[Any], Any]) -> Work:
        """This work, made to give ``finish(result)``; called once, by the `wait` that ends it."""
        before = self._finish
        self._finish = lambda: finish(self._result if before is None else before())
        return self


class Received(Work):
    """A receive from any source."""

    __slots__ = ("_receive",)

    def __init__(self, native: _core.Work) -> None:
        super().__init__(native)
        self._receive = native

    def source(self) -> int:
        """The rank of the group whose message was taken, once `wait` has returned; -1 before."""
        return self._receive.source()


DONE = Work(None)
"""A finished work without a result."""
