"""A rank whose incoming objects are tampered with: argv is what is done to them, and a file that must not appear."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import torch

import slipstream.torch as hvd
from slipstream.faces.torch import objects

HOW, WITNESS = sys.argv[1], Path(sys.argv[2])


class Mine:
    """Unpickling it makes a file."""

    def __reduce__(self) -> Any:
        return Path.touch, (WITNESS,)


def replaced(data: torch.Tensor, before: list[torch.Tensor]) -> torch.Tensor:
    """What somebody on the way makes of the bytes of an object."""
    if HOW == "pickle":
        mine = pickle.dumps(Mine())
        return torch.frombuffer(bytearray(mine + bytes(len(data) - len(mine))), dtype=torch.uint8)
    if HOW == "replay":
        return before[1]  # the object of the operation before
    changed = data.clone()
    changed[len(data) // 4 if HOW == "bit" else 0] ^= 4
    return changed


class Tampered:
    """A handle of an operation whose result is not what was sent."""

    def __init__(self, pending: Any, into: torch.Tensor | None, before: list[torch.Tensor]) -> None:
        self.pending = pending
        self.into = into
        self.before = before

    def wait(self) -> Any:
        got = self.pending.wait()
        data = got if self.into is None else self.into
        self.before.append(data.clone())
        last = 1 if HOW == "size" else 4  # messages: size, object, size, object
        if len(self.before) == last:
            data.copy_(replaced(data, self.before))
        return got


def tamper() -> None:
    """Puts somebody between this rank and the others."""
    before: list[torch.Tensor] = []
    broadcast, gather = objects.start_broadcast, objects.start_all_gather

    def start_broadcast(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        return Tampered(broadcast(tensor, *args, **options), tensor, before)

    def start_all_gather(*args: Any) -> Any:
        return Tampered(gather(*args), None, before)

    objects.start_broadcast = start_broadcast  # type: ignore[assignment]
    objects.start_all_gather = start_all_gather  # type: ignore[assignment]


def main() -> None:
    """Two operations alike; the second one's bytes are changed on rank 1."""
    hvd.init()
    run = hvd.allgather_object if sys.argv[3] == "allgather" else hvd.broadcast_object
    thing = {"text": "x" * 1000}
    if hvd.rank() == 1:
        tamper()
    got = []
    try:
        got += [run(thing), run(thing)]
    except RuntimeError as error:
        print(f"{type(error).__name__}: {error}")
    print("got", len(got), "witness", WITNESS.exists())


main()
