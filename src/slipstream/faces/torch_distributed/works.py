"""The handles c10d gets: a `Work` for every operation, and its future.

What c10d's C++ does with them leaves three traps, found in PyTorch 2.13: a Work made from a future loses errors in
``wait``; an error that Python sets on a future is invisible to C++ (DDP's reducer then reads garbage), while one
raised in a ``then`` callback is seen; and a future's callbacks may wait for other operations, so they must not run
on a thread that those need (`completions`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch

from slipstream.base.arguments import seconds_of
from slipstream.base.errors import SlipstreamError, Timeout
from slipstream.base.training import future_began, future_ended
from slipstream.comm.membership.failures import call_site, called_at
from slipstream.faces.torch_distributed.completions import when_done

__all__ = ["WORKS", "FinishedWork", "JoinedWork", "PendingWork", "Running"]

_c10d: Any = torch._C._distributed_c10d


class Running(Protocol):
    """An operation under way: `slipstream.comm.collectives.work.Work`, or one staged through host memory."""

    def done(self) -> bool:
        """True once `wait` would not block."""

    def wait(self, timeout: float | None = None) -> Any:
        """Waits (seconds; None: for ever); raises the operation's error, or Timeout."""


class _Work(_c10d.Work):  # type: ignore[misc]
    """What all have in common. ``result()`` is the list of output tensors."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        _c10d.Work.__init__(self)
        self._tensors = tensors

    def result(self) -> list[torch.Tensor]:
        """The output tensors."""
        return self._tensors

    def synchronize(self) -> None:
        """`wait`, under another name."""
        self.wait()

    def block_current_stream(self) -> None:
        """`wait`: the result is in order with the current stream of its device."""
        self.wait()

    def get_future_result(self) -> torch.futures.Future[int]:
        """A future of c10d's WorkResult: 0 success, 1 time-out, 2 communication error."""
        answer: torch.futures.Future[int] = self.get_future().then(
            lambda _: 0 if self.exception() is None else 1 if isinstance(self.exception(), Timeout) else 2
        )
        return answer


def _accelerators(tensors: list[torch.Tensor]) -> list[Any]:
    """The devices a future of these tensors must know of."""
    return list({tensor.device for tensor in tensors if tensor.device.index is not None})


class FinishedWork(_Work):
    """The handle of an operation that ran in the caller's thread."""

    def __init__(self, tensors: list[torch.Tensor], on_cpu: bool = False) -> None:
        """``on_cpu``: all tensors are known to be."""
        _c10d.Work.__init__(self)
        self._tensors = tensors
        self._on_cpu = on_cpu

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the operation is done; raises its error, or Timeout when ``timeout`` passes first."""
        return True

    def is_completed(self) -> bool:
        """Whether the operation is done, well or not."""
        return True

    def is_success(self) -> bool:
        """Whether it is done and went well."""
        return True

    def exception(self) -> BaseException | None:
        """Its error, if it is done and failed."""
        return None

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the output tensors."""
        # as `torch.futures.Future(devices=...)` does it, in half the time: DDP asks for one for each bucket
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future.__new__(torch.futures.Future)
        torch._C.Future.__init__(future, [] if self._on_cpu else _accelerators(self._tensors))
        torch._C.Future.set_result(future, self._tensors)
        return future


class PendingWork(_Work):
    """The handle of a running operation.

    ``finish`` puts results where the caller wants them (strided tensors, lists); it runs once, in the first
    thread that sees the operation done.
    """

    def __init__(
        self, running: Running, tensors: list[torch.Tensor], finish: Callable[[], None] | None = None
    ) -> None:
        _Work.__init__(self, tensors)
        self._running: Running = running
        self._finish = finish
        self._finishes = finish is not None
        self._error: BaseException | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._lock = threading.RLock()  # a signal's handler may wait for it, too

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the operation is done; raises its error, or Timeout when ``timeout`` passes first."""
        seconds = seconds_of("timeout", timeout) if timeout is not None else 0.0
        if self._error is not None:
            raise self._error
        try:
            self._running.wait(seconds if seconds > 0 else None)
        except Timeout as error:
            if not self._running.done():
                raise Timeout(f"Work.wait: Timed out waiting {seconds:g} s: {error}") from None
            self._settle()
            raise
        except SlipstreamError as error:
            self._error = error
            raise
        if self._finishes:  # here, or in another thread just now
            self._settle()
        return True

    def _settle(self) -> None:
        """Takes note of how a done operation has ended."""
        with self._lock:
            if self._error is not None:
                return
            try:
                self._running.wait()
            except SlipstreamError as error:
                self._error = error
                return
            if self._finish is not None:
                self._finish()
                self._finish = None  # not before: an exception of a signal handler may have come between

    def is_completed(self) -> bool:
        """Whether the operation is done, well or not."""
        if not self._running.done():
            return False
        self._settle()
        return True

    def is_success(self) -> bool:
        """Whether it is done and went well."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Its error, if it is done and failed."""
        self.is_completed()
        return self._error

    def source_rank(self) -> int:
        """The rank of the group whose message an any-source receive got."""
        source: int = self._running.source()  # type: ignore[attr-defined]
        return source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the output tensors."""
        with self._lock:
            if self._future is not None:
                return self._future
            site = call_site()
            gate: torch.futures.Future[None] = torch.futures.Future(devices=_accelerators(self._tensors))
            self._future = gate.then(lambda _: self._resolve(site))

        def done() -> None:
            future_ended()
            gate.set_result(None)

        future_began()
        when_done(self._running, done)
        return self._future

    def _resolve(self, site: str) -> list[torch.Tensor]:
        with called_at(site):
            self._settle()
        if self._error is not None:
            raise self._error
        return self._tensors


class JoinedWork(_Work):
    """Several operations as one: done when all are."""

    def __init__(self, parts: Sequence[_Work]) -> None:
        super().__init__([tensor for part in parts for tensor in part.result()])
        self._parts = parts

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the operation is done; raises its error, or Timeout when ``timeout`` passes first."""
        for part in self._parts:
            part.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Whether the operation is done, well or not."""
        return all(part.is_completed() for part in self._parts)

    def is_success(self) -> bool:
        """Whether it is done and went well."""
        return all(part.is_success() for part in self._parts)

    def exception(self) -> BaseException | None:
        """Its error, if it is done and failed."""
        return next((e for part in self._parts if (e := part.exception()) is not None), None)

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the output tensors."""
        futures = [part.get_future() for part in self._parts]
        return torch.futures.collect_all(futures).then(self._resolve)

    def _resolve(self, all_parts: torch.futures.Future[Any]) -> list[torch.Tensor]:
        for part in all_parts.value():
            part.value()
        return self._tensors


WORKS: tuple[type, ...] = (_Work, FinishedWork, PendingWork, JoinedWork)
