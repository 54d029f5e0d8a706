"""What an all-reduce of TensorFlow's face costs beside the one of NumPy's arrays: eager, and in a graph.

    slipstream run -np 2 -- python benchmarks/tensorflow_calls.py
    SLIPSTREAM_TENSORFLOW_GRAPHS=negotiated slipstream run -np 2 -- python benchmarks/tensorflow_calls.py

Medians in microseconds, of 4 KiB of float32. The ways take turns. An operation of a graph is what a function with it
takes longer than one without; in a chain of ten each waits for the one before.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import slipstream
import slipstream.tensorflow as hvd

_CHAIN = 10
_CALLS, _REPEATS = 200, 15
_LOCKS = 60  # calls in which any order has been locked


def _function(length: int, communicates: bool) -> Any:
    def steps(tensor: Any) -> Any:
        for _ in range(length):
            tensor = tensor + 0.0
            if communicates:
                tensor = hvd.allreduce(tensor)
        return tensor

    return tf.function(steps)


def _time(call: Callable[[], Any], calls: int) -> float:
    slipstream.barrier()
    for _ in range(12):
        call()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls * 1e6


def main() -> None:
    """Measures, and prints on rank 0."""
    hvd.init()
    array = np.ones(1024, np.float32)
    tensor = tf.ones(1024)
    functions = {(length, way): _function(length, way) for length in (1, _CHAIN) for way in (False, True)}
    ways: dict[Any, Callable[[], Any]] = {
        "raw": lambda: slipstream.all_reduce(array),
        "eager": lambda: hvd.allreduce(tensor),
        "named": lambda: hvd.allreduce(tensor, name="x"),
        **{key: (lambda function=function: function(tensor)) for key, function in functions.items()},
    }
    for call in ways.values():
        for _ in range(_LOCKS):
            call()
    found: dict[Any, list[float]] = {way: [] for way in ways}
    for _ in range(_REPEATS):
        for way, call in ways.items():
            found[way].append(_time(call, _CALLS // 10 if way == (_CHAIN, True) else _CALLS))
    us = {way: statistics.median(times) for way, times in found.items()}
    if hvd.rank() == 0:
        print("graphs:", os.environ.get("SLIPSTREAM_TENSORFLOW_GRAPHS", "native"))
        print(f"raw {us['raw']:.1f}")
        print(f"eager raw + {us['eager'] - us['raw']:.1f}, with a name raw + {us['named'] - us['raw']:.1f}")
        for length in (1, _CHAIN):
            one = (us[length, True] - us[length, False]) / length
            print(f"in a graph, chain of {length}: raw + {one - us['raw']:.1f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
