"""One rank of a job under attack: steady_rank.py FOLDER

First ranks 0 and 1 all-reduce on a group of their own until FOLDER/all exists, so that links to rank 2 are made
while strangers are about; then all ranks do until FOLDER/stop exists. Every result is checked. Each rank prints
where it listens.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import slipstream
from slipstream.comm.membership import job

SIZES = (1, 1000, 300_000)


def listeners() -> dict[str, object]:
    """This process's listening sockets: TCP ports and abstract unix names.

    Without those that are for `Group.shrink`, timelines and metrics: nobody accepts there, or a server as the store's.
    """
    current = job.current()
    assert current.meeting is not None
    mine = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            mine.add(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    tcp = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    ports = [int(f[1].split(":")[1], 16) for f in tcp if f[3] == "0A" and f"socket:[{f[9]}]" in mine]
    unix = [line.split() for line in Path("/proc/self/net/unix").read_text().splitlines()[1:]]
    accepting = 1 << 16
    names = [f[7] for f in unix if len(f) > 7 and int(f[3], 16) & accepting and f"socket:[{f[6]}]" in mine]
    for other in (current.meeting, current.collecting, current.questions):
        if other is not None:
            ports.remove(other.place.port)
    membership = current.membership
    return {"tcp": ports, "unix": names, "job": f"{membership.job}/{membership.epoch}"}


def checked(group: slipstream.Group, turn: int) -> None:
    """One all-reduce whose result depends on every rank and on the turn."""
    data = np.full(SIZES[turn % len(SIZES)], float(turn % 1000 * (group.rank + 1)))
    total = slipstream.all_reduce(data, group=group)
    expected = turn % 1000 * group.size * (group.size + 1) // 2
    assert (total == expected).all(), (turn, total, expected)


def until(file: Path, group: slipstream.Group) -> int:
    """Checked all-reduces until one member sees the file. Returns how many."""
    turn = 0
    while not slipstream.all_reduce(np.array([file.exists()]), slipstream.MAX, group=group)[0]:
        checked(group, turn)
        turn += 1
    return turn


def main() -> None:
    folder = Path(sys.argv[1])
    slipstream.init()
    pair = slipstream.Group([0, 1]) if slipstream.rank() < 2 else None
    if pair is not None:
        checked(pair, 1)
    print(json.dumps(listeners()), flush=True)
    if pair is not None:
        until(folder / "all", pair)
    else:
        while not (folder / "all").exists():
            time.sleep(0.01)  # a poll of a file that the test makes
    checked(slipstream.world(), 1)
    print("all meet", flush=True)
    turns = until(folder / "stop", slipstream.world())
    slipstream.barrier()
    slipstream.shutdown()
    print(f"unharmed after {turns} turns", flush=True)


main()
