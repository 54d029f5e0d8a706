"""A rank whose incoming objects are tampered with: argv is what is done to them, and a file that must not appear."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import slipstream.torch as hvd
from slipstream.comm.collectives import arrays
from slipstream.faces.horovod import objects

HOW, WITNESS = sys.argv[1], Path(sys.argv[2])

Bytes = NDArray[np.uint8]


class Mine:
    """Unpickling it makes a file."""

    def __reduce__(self) -> Any:
        return Path.touch, (WITNESS,)


def replaced(data: Bytes, before: list[Bytes]) -> Bytes:
    """What somebody on the way makes of the bytes of an object."""
    if HOW == "pickle":
        mine = pickle.dumps(Mine())
        return np.frombuffer(mine + bytes(len(data) - len(mine)), dtype=np.uint8)
    if HOW == "replay":
        return before[1]  # the object of the operation before
    changed = data.copy()
    changed[len(data) // 4 if HOW == "bit" else 0] ^= 4
    return changed


class Tampered:
    """The collectives on arrays, with somebody between this rank and the others."""

    def __init__(self) -> None:
        self.before: list[Bytes] = []

    def broadcast(self, *args: Any, **options: Any) -> Bytes:
        return self._tamper(arrays.broadcast(*args, **options))

    def all_gather(self, *args: Any, **options: Any) -> Bytes:
        return self._tamper(arrays.all_gather(*args, **options))

    def _tamper(self, data: Bytes) -> Bytes:
        self.before.append(data.copy())
        last = 1 if HOW == "size" else 4  # messages: size, object, size, object
        if len(self.before) == last:
            data[...] = replaced(data, self.before)
        return data


def main() -> None:
    """Two operations alike; the second one's bytes are changed on rank 1."""
    hvd.init()
    run = hvd.allgather_object if sys.argv[3] == "allgather" else hvd.broadcast_object
    thing = {"text": "x" * 1000}
    if hvd.rank() == 1:
        objects.arrays = Tampered()  # type: ignore[assignment]
    got = []
    try:
        got += [run(thing), run(thing)]
    except RuntimeError as error:
        print(f"{type(error).__name__}: {error}")
    print("got", len(got), "witness", WITNESS.exists())


main()
