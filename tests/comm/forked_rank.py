"""One rank that has a forked child, as data loaders have: forked_rank.py CASE FOLDER, where CASE is a function below.

The child lives until the test makes FOLDER/done, whatever becomes of its parent.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import slipstream

FOLDER = Path(sys.argv[2])


def wait_for(name: str) -> None:
    """Waits for a word of the test or of another process."""
    deadline = time.monotonic() + 120
    while not (FOLDER / name).exists():
        if time.monotonic() > deadline:
            raise AssertionError(f"{name} does not come")
        time.sleep(0.005)  # a poll of a file that another process makes


def open_files() -> dict[str, str]:
    """What this process has open: the number of each descriptor, and what it is."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        try:
            found[path.name] = os.readlink(path)
        except FileNotFoundError:  # the listing's own
            continue
    return found


def mapped() -> str:
    """The shared memory of slipstream that this process has mapped."""
    return "".join(
        sorted({line.split("/memfd:")[1].split()[0] + " " for line in maps() if "/memfd:slipstream" in line})
    )


def maps() -> list[str]:
    """The mappings of this process."""
    return Path("/proc/self/maps").read_text().splitlines()


def child(
    before: dict[str, str],
    parents: dict[str, str],
    shared: NDArray[np.float32],
    group: slipstream.Group,
) -> None:
    """Looks at what it has got from its parent, tells, and stays."""
    session = {number: what for number, what in parents.items() if before.get(number) != what}
    here = open_files()
    inherited = [what for number, what in session.items() if here.get(number) == what]
    found = {
        "session": len(session),
        "inherited": inherited,
        "mapped": mapped(),
        "read": float(shared.sum()),
    }
    for what, options in (("refused", {}), ("group", {"group": group})):
        try:
            slipstream.all_reduce(np.ones(3), **options)
        except slipstream.SlipstreamError as error:
            found[what] = str(error)
    (FOLDER / f"child{os.getppid()}").write_text(json.dumps(found))
    wait_for("done")


def start() -> None:
    """Joins the job, makes links, and forks."""
    before = open_files()
    slipstream.init()
    shared = slipstream.empty(50_000)
    shared[...] = 1
    slipstream.all_reduce(shared, out=shared)
    arguments = (before, open_files(), shared, slipstream.world())
    process = multiprocessing.get_context("fork").Process(target=child, args=arguments)
    process.start()
    wait_for(f"child{os.getpid()}")
    slipstream.barrier()


class Items:
    """A data set: item 0 and 1 are what a worker has open of its parent's session, for the others it stays."""

    def __init__(self, before: dict[str, str], parents: dict[str, str]) -> None:
        self.session = {number: what for number, what in parents.items() if before.get(number) != what}

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index >= 2:
            wait_for("done")
        here = open_files()
        return sum(here.get(number) == what for number, what in self.session.items())


def loads() -> None:
    """The test kills rank 1 while two workers of its data loader are busy, and rank 0 waits for it."""
    from torch.utils.data import DataLoader

    before = open_files()
    slipstream.init()
    slipstream.all_reduce(np.ones(10))
    items = Items(before, open_files())
    assert items.session
    batches = iter(DataLoader(items, num_workers=2, multiprocessing_context="fork"))
    assert next(batches).item() + next(batches).item() == 0
    slipstream.barrier()
    be_lost()


def killed() -> None:
    """The test kills rank 1 while rank 0 waits for it."""
    start()
    be_lost()


def be_lost() -> None:
    """Rank 1 waits to be killed; rank 0 tells what it learns of that."""
    (FOLDER / f"running{slipstream.rank()}").touch()
    if slipstream.rank() == 1:
        wait_for("never")
    try:
        slipstream.all_reduce(np.ones(10))
    except slipstream.PeerLost as error:
        print(json.dumps({"rank": error.rank, "text": str(error)}), flush=True)
    slipstream.shutdown()
    wait_for("done")


def left() -> None:
    """Rank 0 leaves in good order while its child lives; rank 1 waits for it in vain."""
    start()
    if slipstream.rank() == 1:
        wait_for("left")
        try:
            slipstream.all_reduce(np.ones(10))
        except slipstream.PeerLost as error:
            print(json.dumps({"rank": error.rank, "text": str(error)}), flush=True)
    slipstream.shutdown()
    (FOLDER / "left").touch()
    wait_for("done")


def leaves() -> None:
    """All leave in good order, at once; each tells how many seconds its leave took."""
    start()
    begin = time.monotonic()
    slipstream.shutdown()
    print(json.dumps({"seconds": time.monotonic() - begin}), flush=True)
    wait_for("done")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
