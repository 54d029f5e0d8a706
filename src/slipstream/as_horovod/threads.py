"""Work in threads, under the names that Horovod's programs and tests import."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["execute_function_multithreaded", "in_thread", "on_event"]


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Starts ``target(*args)`` in a thread and returns that; ``silent``: what it raises is dropped."""
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, such as (value,), not {type(args)}")
    thread = threading.Thread(
        target=_quiet(target) if silent else target, args=args, name=name, daemon=daemon
    )
    thread.start()
    return thread


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Starts a thread that calls ``func(*args)`` once ``event`` is set, unless ``stop`` is set before.

    It looks at ``stop`` every ``check_stop_interval_s`` seconds. Without ``stop`` it has to be a daemon.
    """
    if event is None:
        raise ValueError("event must not be None")
    if stop is None and not daemon:
        raise ValueError("a thread that is no daemon needs an event to stop it")

    def wait_and_call() -> None:
        while not event.wait(None if stop is None else check_stop_interval_s):
            if stop is not None and stop.is_set():
                return
        if stop is None or not stop.is_set():
            func(*args)

    return in_thread(wait_and_call, daemon=daemon, silent=silent)


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Calls ``fn(*args)`` for each of ``args_list`` in threads; returns the results by number.

    Raises what a call has raised. Without ``block_until_all_done`` it returns None at once.
    """
    pool = ThreadPoolExecutor(max(1, min(max_concurrent_executions, len(args_list))))
    calls = [pool.submit(fn, *args) for args in args_list]
    pool.shutdown(wait=block_until_all_done)
    return {number: call.result() for number, call in enumerate(calls)} if block_until_all_done else None


def _quiet(target: Callable[..., Any]) -> Callable[..., None]:
    def call(*args: Any) -> None:
        with contextlib.suppress(Exception):
            target(*args)

    return call
