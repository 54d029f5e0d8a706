"""One rank of `allreduce.py`: measures all contenders in turns, in this one process, and checks every batch.

A batch is a number of calls without a pause, on values that any wrong call would spoil: rank r begins with
``pattern * (r + 1)``, call k turns that into ``pattern * S * n**(k - 1)`` with ``S = 1 + 2 + ... + n``. The
pattern is scaled down so far that a batch stays within float32; all of it is exact where n is a power of two.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jobs
import machine
import numpy as np
from contenders import Array, Contender, open_contenders

import slipstream

__all__ = ["Values", "calls_per_batch"]

_BATCH_CALLS = 200
_BATCH_BYTES = 32 << 20
_SCALE = 2.0**-100
_IDLE_SECONDS = 2.0


def calls_per_batch(nbytes: int, ranks: int) -> int:
    """As many calls as are worth timing together, and as the values of a batch allow."""
    # Powers of two between the greatest first result and float32's limit, 2**128.
    headroom = 128 + 100 - math.log2(251 * ranks * (ranks + 1) / 2) - 1
    exact = 1 + int(headroom / math.log2(max(ranks, 2)))
    return max(1, min(_BATCH_CALLS, exact, _BATCH_BYTES // nbytes))


@dataclass
class Values:
    """What the ranks put in, and what must come out after ``calls`` calls. ``count``: elements."""

    count: int
    rank: int
    ranks: int
    calls: int

    def __post_init__(self) -> None:
        self._pattern: Array = ((np.arange(self.count) % 251 + 1) * _SCALE).astype(np.float32)
        total = self.ranks * (self.ranks + 1) / 2 * float(self.ranks) ** (self.calls - 1)
        self._expected: Array = (self._pattern.astype(np.float64) * total).astype(np.float32)
        self._exact = self.ranks & (self.ranks - 1) == 0

    def fill(self, array: Array) -> None:
        """Writes this rank's contribution."""
        np.multiply(self._pattern, np.float32(self.rank + 1), out=array)

    def mistake(self, array: Array) -> str | None:
        """The first wrong element, in words; None if all are right."""
        if self._exact and np.array_equal(array, self._expected):
            return None
        tolerance = 0.0 if self._exact else self.calls * self.ranks * 1e-7
        wrong = ~(np.abs(array - self._expected) <= tolerance * self._expected)
        if not wrong.any():
            return None
        first = int(wrong.argmax())
        return f"element {first} of {array.size} is {array[first]:.9g}, not {self._expected[first]:.9g}"


@dataclass
class Meter:
    """Runs the batches of one job and keeps what they gave."""

    contenders: list[Contender]
    repeats: int
    inject: bool
    mistakes: list[str]

    def measure(self, nbytes: int) -> dict[str, Any]:
        """Seconds per call of every contender in every repeat, for arrays of ``nbytes`` bytes."""
        rank, ranks = slipstream.rank(), slipstream.size()
        calls = calls_per_batch(nbytes, ranks)
        values = Values(max(nbytes // 4, 1), rank, ranks, calls)
        ordinary: Array = np.empty(values.count, dtype=np.float32)
        shared: Array = slipstream.empty(values.count, np.float32)
        arrays = [shared if contender.shared else ordinary for contender in self.contenders]
        bound = [c.bind(array) for c, array in zip(self.contenders, arrays, strict=True)]
        seconds: dict[str, list[float]] = {contender.name: [] for contender in self.contenders}
        warm_up = 1 if calls == 1 else 2
        for repeat in range(-warm_up, self.repeats):
            for turn in range(len(self.contenders)):
                # Another one begins each time, so that none always follows the same.
                index = (turn + repeat) % len(self.contenders)
                array, name = arrays[index], self.contenders[index].name
                values.fill(array)
                elapsed = _time_batch(bound[index], calls)
                if self.inject and repeat == 0 and rank == ranks - 1:
                    array[values.count // 2] *= np.float32(1.001)
                mistake = values.mistake(array)
                if mistake is not None:
                    self.mistakes.append(f"{name}, {nbytes} B, repeat {repeat}, rank {rank}: {mistake}")
                if repeat >= 0:
                    seconds[name].append(elapsed / calls)
        return {"bytes": values.count * 4, "calls": calls, "seconds": seconds}


def _time_batch(call: Callable[[], object], calls: int) -> float:
    slipstream.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - start


def _idle_cpu() -> float:
    """Share of one core that this process uses while its engine has nothing to do, after it had something."""
    for nbytes in (4, 4 << 10, 16 << 20):
        slipstream.all_reduce(np.ones(nbytes // 4, dtype=np.float32))
    slipstream.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    time.sleep(_IDLE_SECONDS)
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def _mpi_version() -> dict[str, str]:
    mpi: Any = importlib.import_module("mpi4py.MPI")
    return {"open-mpi": mpi.Get_library_version().split(",")[0].removeprefix("Open MPI v").strip("\0 ")}


def main() -> None:
    """Measures what the command line names, and delivers it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--sizes", required=True, help="bytes, separated by commas")
    parser.add_argument("--contenders", required=True, help="names, separated by commas")
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--inject-error", action="store_true")
    arguments = parser.parse_args()
    names = arguments.contenders.split(",")
    gc.disable()
    slipstream.init()
    rank = slipstream.rank()
    idle = _idle_cpu()  # before any other library has threads in this process
    meter = Meter(open_contenders(names, arguments.folder), arguments.repeats, arguments.inject_error, [])
    memory = machine.memory_traffic(slipstream.barrier)
    sizes = [meter.measure(int(size)) for size in arguments.sizes.split(",")]
    versions = machine.versions("slipstream", "numpy", "torch", "mpi4py")
    if "mpi" in names:
        versions.update(_mpi_version())
    result = {
        "sizes": sizes,
        "memory": memory,
        "idle_cpu": idle,
        "mistakes": meter.mistakes,
        "versions": versions,
    }
    jobs.deliver(arguments.folder, rank, result)
    slipstream.barrier()
    if "gloo" in names:
        import torch.distributed

        torch.distributed.destroy_process_group()
    slipstream.shutdown()


if __name__ == "__main__":
    main()
