"""One rank of a job that loses a reducer. lost_parts_rank.py wire WIRE | late FOLDER

``wire``: what was lost of data in a wire type is reduced anew, all of it. ``late``: a rank calls an operation when the
others have left the session with the reducer that takes part in it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import slipstream
from slipstream.base.dtypes import Op
from slipstream.comm.collectives.work import Work
from slipstream.comm.membership import job

slipstream.init()
rank, size = slipstream.rank(), slipstream.size()
reducers = job.current().reducers


def until(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)  # a poll for a file of another process


def wire(name: str) -> None:
    count = 3_000_000
    assert reducers.client is not None
    slipstream.barrier()
    # Windows of an odd size: a chunk of the engine is then none of as many bytes.
    reducers.client.set_rates([size / len(reducers.states())] * len(reducers.states()), 4.3e6)
    slipstream.barrier()
    parts = [
        ((np.arange(count) * 7 + r * 3) % 16).astype(np.float32) for r in range(size)
    ]  # bf16 has their sums
    total = np.sum(parts, axis=0)
    lost = False
    turn = 0
    while not slipstream.all_reduce(np.array([lost]), Op.MIN)[0]:
        out = np.full(count, -7, np.float32)
        slipstream.all_reduce(parts[rank], out=out, wire=name)
        assert (out == total).all(), np.flatnonzero(out != total)[:5]
        turn += 1
        if turn == 3:
            print("used", flush=True)
        lost = any(state["lost"] for state in reducers.states())
    print("right", flush=True)


def start() -> Work:
    work = slipstream.all_reduce(np.ones(900_000, np.float32), async_op=True)
    assert isinstance(work, Work)
    return work


def late(folder: Path) -> None:
    for _ in range(6):
        start().wait()
    print("used", flush=True)
    until(folder / "go")
    first = start()
    if rank == 2:
        first.wait()
        until(folder / "left")
        works = [start() for _ in range(4)]
    else:
        works = [start()]
        first.wait()
        works += [start() for _ in range(3)]
        while rank == 0 and all(state["used"] for state in reducers.states()):
            time.sleep(0.01)  # a poll of the session, which is left
        if rank == 0:
            (folder / "left").touch()
    for work in works:
        assert (work.wait() == size).all()
    print("right", flush=True)


{"wire": wire, "late": lambda folder: late(Path(folder))}[sys.argv[1]](sys.argv[2])
slipstream.shutdown()
