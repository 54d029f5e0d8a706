"""Functions that `test_calls` has ranks call."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy

import slipstream


def total(scale: float, *, shift: float = 0.0) -> Any:
    slipstream.init()
    print(f"hello from {slipstream.rank()}")
    return slipstream.rank(), slipstream.all_reduce(numpy.ones(4) * scale + shift)


def one_raises() -> None:
    """Rank 1 fails by itself; the others are told of it in their all-reduce."""
    slipstream.init()
    if slipstream.rank() == 1:
        raise KeyError("no such column")
    slipstream.all_reduce(numpy.ones(3))


class Awkward(Exception):
    """Cannot be unpickled: its constructor takes two arguments, and its args hold one."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def raises_awkwardly() -> None:
    raise Awkward(1, 2)


def exits() -> None:
    """Rank 1 leaves as a script does that is done."""
    if os.environ["SLIPSTREAM_RANK"] == "1":
        sys.exit(0)


def killed() -> None:
    slipstream.init()
    if slipstream.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)


def returns_a_lock() -> Any:
    import threading

    return threading.Lock()


LONG = 60_000  # characters of a line, which the launcher does not cut


def prints(lines: int) -> int:
    for _ in range(lines):
        print("x" * LONG)
    return lines


def modes() -> dict[str, int]:
    """Permissions of the folder that pickles travel in, and of all in it."""
    folder = Path(sys.argv[2])
    return {one.name: one.stat().st_mode & 0o777 for one in (folder, *folder.iterdir())}


def command_lines() -> str:
    """The command lines of this process and all above it."""
    texts, process = [], os.getpid()
    while process > 1:
        texts.append(Path(f"/proc/{process}/cmdline").read_text())
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return "\n".join(texts)


def secret() -> str:
    return os.environ["SLIPSTREAM_SECRET"]


def stays(folder: str) -> None:
    """Says that it is there, and is there until it is ended."""
    Path(folder, os.environ["SLIPSTREAM_RANK"]).write_text(str(os.getpid()))
    time.sleep(3600)


def place_by_horovod(value: str, more: int) -> tuple[int, int, str, int, bool, str]:
    """What a rank that `horovod.run` has started knows."""
    horovod = importlib.import_module("horovod")
    rank, size = horovod_environment().get_env_rank_and_size()
    print(f"hello from {rank}")
    return rank, size, value, more, horovod.__slipstream__, os.environ["SLIPSTREAM_START_TIMEOUT"]


def horovod_environment() -> Any:
    return importlib.import_module("horovod.runner.common.util.env")
