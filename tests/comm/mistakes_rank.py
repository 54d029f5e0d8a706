"""A rank that calls operations with wrong arguments; it prints what each call raises, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import slipstream

slipstream.init()
rank = slipstream.rank()
other = 1 - rank
ones = np.ones(2)


class OnDevice:
    """Memory that no array can be made of."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("it is on a device")


CALLS: dict[str, Callable[[], Any]] = {
    "out": lambda: slipstream.all_reduce(ones, out=[0.0, 0.0]),
    "out of a scalar": lambda: slipstream.all_reduce(np.float64(1), out=np.float64(0)),
    "out of all_gather": lambda: slipstream.all_gather(ones, out=[0.0] * 4),
    "out of gather": lambda: slipstream.gather(ones, out=[0.0] * 4),
    "out of broadcast": lambda: slipstream.broadcast(ones, out=(0.0, 0.0)),
    "out of reduce": lambda: slipstream.reduce(ones, 0, out=[0.0, 0.0]),
    "out of reduce_scatter": lambda: slipstream.reduce_scatter(ones, out=[0.0]),
    "out of scatter": lambda: slipstream.scatter(ones, out=[0.0]),
    "out of all_to_all": lambda: slipstream.all_to_all(ones, out=[0.0, 0.0]),
    "out on a device": lambda: slipstream.all_reduce(ones, out=OnDevice()),  # type: ignore[arg-type]
    "x of recv": lambda: slipstream.recv([0, 0], other),
    "shape": lambda: slipstream.recv((3,), other),
    "group": lambda: slipstream.all_reduce(ones, group=[0, 1]),  # type: ignore[arg-type]
    "empty group": lambda: slipstream.all_reduce(ones, group=[]),  # type: ignore[arg-type]
    "group of barrier": lambda: slipstream.barrier(group=0),  # type: ignore[arg-type]
    "name": lambda: slipstream.all_reduce(ones, name=5),  # type: ignore[arg-type]
    "name of all_gather": lambda: slipstream.all_gather(ones, name=5),  # type: ignore[arg-type]
    "name of gather": lambda: slipstream.gather(ones, name=5),  # type: ignore[arg-type]
    "name of scatter": lambda: slipstream.scatter(ones, out=np.ones(1), name=5),  # type: ignore[arg-type]
    "name of all_to_all": lambda: slipstream.all_to_all(ones, name=5),  # type: ignore[arg-type]
    "root": lambda: slipstream.broadcast(ones, "0"),  # type: ignore[arg-type]
    "root of gather": lambda: slipstream.gather(ones, root="0"),  # type: ignore[arg-type]
    "array as root": lambda: slipstream.broadcast(ones, root=ones),  # type: ignore[arg-type]
    "group of empty": lambda: slipstream.empty(3, group=ones),  # type: ignore[arg-type]
    "job": lambda: slipstream.Group([0, 1], job="x"),  # type: ignore[arg-type]
    "blocks": lambda: slipstream.dequantize("x"),  # type: ignore[arg-type]
    "dtype of blocks": lambda: slipstream.dequantize(ones),
    "dst": lambda: slipstream.send(ones, "1"),  # type: ignore[arg-type]
    "tag": lambda: slipstream.send(ones, other, tag="x"),  # type: ignore[arg-type]
    "number": lambda: slipstream.Group(0),  # type: ignore[arg-type]
    "texts": lambda: slipstream.Group(["0", "1"]),  # type: ignore[list-item]
    "floats": lambda: slipstream.Group([0.0, 1.0]),  # type: ignore[list-item]
    "absent": lambda: slipstream.Group([0, 5]),
    "none": lambda: slipstream.Group([]),
    "twice": lambda: slipstream.Group([0, 0, 1]),
    "others": lambda: slipstream.Group([other]),
    "wait": lambda: slipstream.all_reduce(ones, async_op=True).wait(True),
}


def error_of(call: Callable[[], Any]) -> str:
    try:
        return f"returned {call()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


errors = {what: error_of(call) for what, call in CALLS.items()}
sys.stdout.write(f"errors: {json.dumps(errors)}\n")  # one write: the engine's warnings go to the same file
memory = bytearray(16)
slipstream.all_reduce(ones, out=memoryview(memory).cast("d"))  # the job lives, and buffers do as ever
assert np.frombuffer(memory).tolist() == [2, 2]
slipstream.shutdown()
