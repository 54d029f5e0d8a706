"""Events of PyTorch's profiler for operations, as c10d's own backends make them: ``slipstream:all_reduce``.

An event lasts from the call to the end of the operation, which must be told on another thread than the caller's for
the profiler to count it as asynchronous. Nothing of this happens while no profiler is running.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.autograd import profiler

from slipstream.base.errors import SlipstreamError
from slipstream.faces.torch_distributed.works import FinishedWork

__all__ = ["recorded"]

_Method = TypeVar("_Method", bound=Callable[..., Any])
_here = threading.local()


def recorded(event: str, inputs: Callable[..., Sequence[torch.Tensor]]) -> Callable[[_Method], _Method]:
    """Decorates a method of a group: ``inputs`` gives the tensors it reads, from its arguments."""

    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not profiler._is_profiler_enabled or getattr(_here, "inside", False):
                return method(self, *args, **kwargs)
            _here.inside = True  # an operation may be made of others
            try:
                return _record(f"{self.label}:{event}", inputs(*args), lambda: method(self, *args, **kwargs))
            finally:
                _here.inside = False

        return run  # type: ignore[return-value]

    return decorate


def _record(name: str, inputs: Sequence[torch.Tensor], start: Callable[[], Any]) -> Any:
    ops: Any = torch.ops.profiler
    record = torch._C._autograd._record_function_with_args_enter(name, *inputs)
    try:
        work = start()
    except BaseException:
        ops._record_function_exit._RecordFunction(record)
        raise
    end: torch.futures.Future[None] = torch.futures.Future()
    ops._call_end_callbacks_on_jit_fut._RecordFunction(record, end)
    wait = work.wait

    def finish() -> None:
        with contextlib.suppress(SlipstreamError):
            wait()
        end.set_result(None)

    thread = threading.Thread(target=finish, name="slipstream profiling", daemon=True)
    thread.start()
    if isinstance(work, FinishedWork):
        thread.join()

    def wait_and_record(*timeout: Any) -> Any:
        result = wait(*timeout)
        thread.join()
        return result

    work.wait = wait_and_record
    return work
