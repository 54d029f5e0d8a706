"""Where the ``slipstream`` command begins: Ctrl-C before the command itself runs ends it without a traceback."""

from __future__ import annotations

import os
import signal
from types import FrameType

__all__ = ["main"]


def main() -> None:
    """Imports the command, which takes a while, and runs it."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, and stays so
    if ours:
        signal.signal(signal.SIGINT, _leave)
    from slipstream.cli.main import main as command

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command(prog_name="slipstream")


def _leave(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)  # nothing has been started that needs an end
