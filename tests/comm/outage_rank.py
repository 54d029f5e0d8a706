"""A rank of test_outages.py: checked all-reduces until a file is there; connections are reset when a file says so.

outage_rank.py FOLDER

In FOLDER: ``go`` begins it, ``reset-R`` has rank R reset all its connections (and removes the file), ``stop`` ends it.
Rank 0 writes the number of the last call to ``calls``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat
import sys
import threading
import time
from pathlib import Path

import numpy as np

import slipstream

_libc = ctypes.CDLL(None, use_errno=True)


def reset_all() -> None:
    """Resets every TCP connection of this process, as a router might that has lost its tables."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue  # a copy of it would stay
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
                sock.getpeername()  # not a listener
                nobody = ctypes.create_string_buffer(28)  # AF_UNSPEC: disconnects, with a reset
                _libc.connect(sock.fileno(), nobody, 28)


def obey(order: Path) -> None:
    """Resets whenever the file is there."""
    while True:
        if order.exists():
            reset_all()
            order.unlink()
        time.sleep(0.01)


folder = Path(sys.argv[1])
slipstream.init()
rank, n = slipstream.rank(), slipstream.size()
threading.Thread(target=obey, args=(folder / f"reset-{rank}",), daemon=True).start()
(folder / f"pid-{rank}").write_text(str(os.getpid()))
(folder / f"pid-{rank}").rename(folder / f"ready-{rank}")
while not (folder / "go").exists():
    time.sleep(0.01)
pattern = (np.arange(1 << 18) % 251 + 1).astype(np.float32)
call, more = 0, True
while more:
    call += 1
    total = slipstream.all_reduce(pattern * (rank + call % 7))
    if not np.array_equal(total, pattern * (n * (n - 1) // 2 + n * (call % 7))):
        raise SystemExit(f"rank {rank}: wrong sum in call {call}")
    if rank == 0:
        (folder / "calls.new").write_text(str(call))
        (folder / "calls.new").rename(folder / "calls")
    more = not slipstream.broadcast(np.array([(folder / "stop").exists()]))[0]
slipstream.shutdown()
