"""Runs a command on a host of a lab, with events on the links meanwhile."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

from slipstream.lab import registry
from slipstream.lab.errors import LabError
from slipstream.lab.lab import Lab
from slipstream.lab.spec import Event

__all__ = ["run_command"]


def run_command(
    lab: Lab, host: str, command: Sequence[str], *, events: Sequence[Event] = (), say: Callable[[str], None]
) -> int:
    """Runs ``command`` on ``host`` and the ``events`` beside it; returns its exit code (128 + signal).

    ``say`` is told of each event. SIGTERM and SIGHUP are passed on; Ctrl-C reaches the command by itself. Raises
    LabError if there is no such command.
    """
    if "/" not in command[0] and shutil.which(command[0]) is None:  # hosts have the machine's files
        raise LabError(f"cannot run {command[0]!r}: no folder of PATH has a command of that name")
    stop = threading.Event()
    old: dict[int, object] = {}
    process: subprocess.Popen[bytes] | None = None
    asked: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        asked.append(number)
        if process is not None and number != signal.SIGINT:
            process.send_signal(number)

    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        old[one] = signal.signal(one, pass_on)
    try:
        try:
            process = lab.popen(host, command)
        except OSError as error:
            raise LabError(f"cannot run {command[0]!r}: {error.strerror}") from None
        for number in asked:
            process.send_signal(number)
        clock = threading.Thread(target=_events, args=(lab, events, stop, say), daemon=True)
        clock.start()
        code = process.wait()
        stop.set()
        clock.join()
        if code == -signal.SIGKILL and _is_removed(lab):
            say(f"lab {lab.name} was removed while {command[0]} was running there")
        return code if code >= 0 else 128 - code
    finally:
        stop.set()
        for number, handler in old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


def _is_removed(lab: Lab) -> bool:
    """Whether the lab is gone, or goes within a second: who removes it kills its processes first."""
    end = time.monotonic() + 1
    while registry.folder_of(lab.name).exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _events(lab: Lab, events: Sequence[Event], stop: threading.Event, say: Callable[[str], None]) -> None:
    start = time.monotonic()
    for event in sorted(events, key=lambda event: event.at):
        if stop.wait(max(0.0, start + event.at - time.monotonic())):
            return
        try:
            lab.apply(event)
            say(f"event {event}")
        except (LabError, ValueError) as error:
            say(f"event {event} failed: {error}")
