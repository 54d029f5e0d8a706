"""A rank that leaves as soon as its own part is done, while others have not taken all that it has sent."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import slipstream

UNEVEN = [4308, 0, 6, 41, 79677, 7, 1, 20, 4450, 0, 3623, 0, 1394]


def behind(folder: Path) -> None:
    """Rank 0 has sent four times what a ring of shared memory holds before rank 1 takes the first of it."""
    slipstream.barrier()
    sent = folder / "sent"
    while slipstream.rank() == 1 and not sent.exists():
        time.sleep(0.01)
    for i in range(60):
        x = np.full(4000, i if slipstream.rank() == 0 else -1, np.float32)
        slipstream.broadcast(x, 0, out=x)
        assert (x == i).all(), i
    sent.touch()


def stopped(_: Path) -> None:
    """Rank 1 takes nothing."""
    slipstream.barrier()
    if slipstream.rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    for _i in range(60):
        slipstream.broadcast(np.ones(4000, np.float32), 0)


def latest(folder: Path) -> None:
    """Rank 0 sends about as much as a ring holds; the last message is none that rank 1 receives."""
    count = int(sys.argv[3])
    x = np.zeros(4000, np.uint8)
    for _ in range(3):  # the next ones need no works
        slipstream.send(x, 1) if slipstream.rank() == 0 else slipstream.recv(x, 0)
    slipstream.barrier()
    if slipstream.rank() == 0:
        while _state_of(int((folder / "pid").read_text())) != "T":
            time.sleep(0.01)
        for _ in range(count):
            slipstream.send(x, 1)
        (folder / "sent").touch()
        return
    os.kill(os.getpid(), signal.SIGSTOP)
    for _ in range(count - 1):
        slipstream.recv(x, 0)
    slipstream.recv(np.zeros(1000, np.float32), 0)


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def uneven(_: Path) -> None:
    """Blocks of most ranks are empty long before that of one has come round; chunks are as small as frames."""
    slipstream.world().use("all_gather", "ring", 16 << 10)
    rank, size = slipstream.rank(), slipstream.size()
    found = slipstream.all_gather(np.full(UNEVEN[rank], rank, np.float32))
    assert np.array_equal(found, np.repeat(np.arange(size, dtype=np.float32), UNEVEN))


slipstream.init()
if slipstream.rank() == 1 and sys.argv[1] == "latest":
    (Path(sys.argv[2]) / "pid").write_text(str(os.getpid()))
globals()[sys.argv[1]](Path(sys.argv[2]))
slipstream.shutdown()
