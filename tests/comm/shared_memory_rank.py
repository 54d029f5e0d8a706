"""One rank of the tests of shared memory: shared_memory_rank.py CASE FOLDER, where CASE is a function below.

Ranks and test tell each other where they are by files in FOLDER.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import slipstream
from slipstream.comm.membership import opening

FOLDER = Path(sys.argv[2])


def tell(name: str) -> None:
    """Tells the test, and the other ranks, that this rank has come so far."""
    (FOLDER / name).touch()


def wait_for(name: str) -> None:
    """Waits for a word of the test or of another rank."""
    deadline = time.monotonic() + 60
    while not (FOLDER / name).exists():
        if time.monotonic() > deadline:
            raise AssertionError(f"{name} does not come")
        time.sleep(0.005)  # a poll of a file that another process makes


def report(error: slipstream.SlipstreamError) -> None:
    """Prints an error as a line of JSON."""
    found = {"error": type(error).__name__, "rank": getattr(error, "rank", None), "text": str(error)}
    print(json.dumps(found), flush=True)


def knock() -> None:
    """Rank 0 is stopped before any link is made, so that rank 1 knocks; then it is killed."""
    slipstream.init()
    if slipstream.rank() == 0:
        tell("ready")
        wait_for("never")
    wait_for("stopped")
    work = slipstream.all_reduce(np.ones(10), async_op=True)
    tell("called")
    try:
        work.wait()
    except slipstream.PeerLost as error:
        report(error)


WRITTEN_BYTES = 64 << 20
MESSAGES = 200
MESSAGE_BYTES = 64 << 10


def write() -> None:
    """Rank 1 puts bytes into the memory of rank 0 all the time; it is stopped, given up, and woken."""
    slipstream.init()
    data = slipstream.empty(WRITTEN_BYTES, np.uint8)
    data[...] = 5
    try:
        for i in range(1 << 30):
            slipstream.broadcast(data, root=1, out=data)
            if i == 3:
                tell(f"running{slipstream.rank()}")
    except slipstream.SlipstreamError as error:
        report(error)
        if slipstream.rank() == 1:
            tell("woken")
            return
    data[...] = 1  # the survivor has its memory back
    tell("reused")
    wait_for("woken")
    changed = int((data != 1).sum())
    print(json.dumps({"changed": changed}), flush=True)


def read() -> None:
    """Rank 1 copies from the memory of rank 0 all the time; it is stopped, given up, and woken."""
    slipstream.init()
    receiver = slipstream.rank() == 1
    data = slipstream.empty(MESSAGES * MESSAGE_BYTES, np.uint8)
    data[...] = 5
    if receiver:
        data = np.zeros(MESSAGES * MESSAGE_BYTES, np.uint8)  # not shared: it is the receiver who copies
    parts = np.split(data, MESSAGES)
    works = []
    try:
        for i in range(1 << 30):
            if receiver:
                data[...] = 0
                works = [slipstream.recv(part, 0, tag=t, async_op=True) for t, part in enumerate(parts)]
            else:
                works = [slipstream.send(part, 1, tag=t, async_op=True) for t, part in enumerate(parts)]
            for work in works:
                work.wait()
            if i == 3:
                tell(f"running{slipstream.rank()}")
    except slipstream.SlipstreamError as error:
        report(error)
    if not receiver:
        data[...] = 9  # the survivor has its memory back
        tell("reused")
        wait_for("done")
        return
    received = 0
    for work, part in zip(works, parts, strict=False):
        with contextlib.suppress(slipstream.SlipstreamError):
            work.wait()
            received += 1
            if (part != 5).any():
                print(json.dumps({"wrong": int((part != 5).sum())}), flush=True)
    print(f"{received} messages came before", flush=True)


def transports() -> None:
    """The ranks differ in SLIPSTREAM_TRANSPORT."""
    os.environ["SLIPSTREAM_TRANSPORT"] = ["auto", "tcp"][int(os.environ["SLIPSTREAM_RANK"])]
    try:
        slipstream.init()
    except slipstream.SlipstreamError as error:
        report(error)


def prescales() -> None:
    """The ranks differ in their scales."""
    slipstream.init()
    try:
        slipstream.all_reduce(np.ones(10), prescale=0.5 + slipstream.rank())
    except slipstream.SlipstreamError as error:
        report(error)


def no_thread() -> None:
    """Rank 1 has no memory left for another thread's stack when the engine's is to be started."""
    exchange = opening.exchange

    def and_then_no_memory(*args: Any) -> Any:
        found = exchange(*args)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))
        return found

    if os.environ["SLIPSTREAM_RANK"] == "1":
        opening.exchange = and_then_no_memory
    try:
        slipstream.init()
        slipstream.all_reduce(np.ones(10))
    except slipstream.SlipstreamError as error:
        report(error)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
