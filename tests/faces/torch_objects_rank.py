"""A rank of torch.distributed: argv is an operation, what becomes of the bytes that rank 1 gets, and a file.

The file must not appear: it is made by unpickling what somebody on the way has put in the place of an object.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_c10d: Any = distributed_c10d
OPERATION, HOW, WITNESS = sys.argv[1], sys.argv[2], Path(sys.argv[3])
THING = {"text": "x" * 1000}


class Mine:
    """Unpickling it makes a file."""

    def __reduce__(self) -> Any:
        return Path.touch, (WITNESS,)


class Tampered:
    """An operation on tensors, with somebody between this rank and the others: bytes of the second call are changed."""

    before: list[torch.Tensor] = []  # noqa: RUF012

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __call__(self, first: Any, *args: Any, **kwargs: Any) -> Any:
        result = self._original(first, *args, **kwargs)
        for tensor in first if isinstance(first, list) else [first]:
            if tensor.dtype == torch.uint8 and tensor.numel() > 1000:
                self._tamper(tensor)
                break  # what rank 0 has sent
        return result

    def _tamper(self, tensor: torch.Tensor) -> None:
        self.before.append(tensor.clone())
        if len(self.before) != 2:
            return
        if HOW == "replay":
            tensor.copy_(self.before[0])
        elif HOW == "bit":
            tensor[tensor.numel() // 2] ^= 4
        elif HOW == "pickle":
            mine = pickle.dumps(Mine())
            tensor[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        elif HOW == "behind":  # the mark and the tag are what they were
            mine = pickle.dumps(Mine())
            tensor[44 : 44 + len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)


def call(rank: int) -> Any:
    """One operation; returns what rank 1 gets."""
    got: list[Any] = [None, None]
    if OPERATION == "all_gather":
        dist.all_gather_object(got, THING)
    elif OPERATION == "gather":
        dist.gather_object(THING, got if rank == 1 else None, dst=1)
    elif OPERATION == "broadcast":
        got = [THING, THING] if rank == 0 else got
        dist.broadcast_object_list(got, src=0)
    elif OPERATION == "scatter":
        got = [None]
        dist.scatter_object_list(got, [THING, THING] if rank == 0 else None, src=0)
    elif rank == 0:
        dist.send_object_list([THING, THING], dst=1)
    else:
        dist.recv_object_list(got, src=0)
    return got


def without_tags() -> None:
    """As a version of slipstream without them."""
    for name in ("_object_to_tensor", "_tensor_to_object"):
        wrapped = getattr(_c10d, name)
        original = next(cell.cell_contents for cell in wrapped.__closure__ if callable(cell.cell_contents))
        setattr(_c10d, name, original)


def main() -> None:
    rank = int(os.environ["SLIPSTREAM_RANK"])
    meeting = WITNESS.with_name("meeting")
    dist.init_process_group("slipstream", init_method=f"file://{meeting}", rank=rank, world_size=2)
    if f"untagged {rank}" == HOW:
        without_tags()
    elif rank == 1:
        for name in ("broadcast", "all_gather", "gather", "scatter", "recv"):
            original = getattr(_c10d, name)
            setattr(_c10d, name, _gathering(original) if name == "gather" else Tampered(original))
    calls = 0
    try:
        for _ in range(2):
            got = call(rank)
            calls += 1
            if rank == 1:
                assert got[0] == THING, got
    except Exception as error:  # an error of pickle, too
        print(f"{type(error).__name__}: {error}")
    print("got", calls, "witness", WITNESS.exists())


def _gathering(original: Callable[..., Any]) -> Callable[..., Any]:
    def gather(tensor: torch.Tensor, gather_list: Any = None, **kwargs: Any) -> Any:
        return Tampered(lambda outputs: original(tensor, gather_list=outputs, **kwargs))(gather_list)

    return gather


main()
