"""A rank that reduces vectors by Adasum. adasum_rank.py values | odd | differ | break

values    random vectors of all dtypes: near what the definition says in float64, and the same bits everywhere
odd       zero vectors, tiny ones, and ones with NaN: each spoils itself alone
differ    the ranks bring different vectors; prints the error
break     rank 1 leaves between its call and the end of it; prints the others' error
"""

from __future__ import annotations

import os
import sys
import zlib

import numpy as np

import slipstream
from slipstream import _core
from slipstream.base.dtypes import DType, itemsize
from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.adasum import Vectors
from slipstream.comm.collectives.adasum_line import start_adasum
from slipstream.plan.topology import members_of_hosts

COUNTS = (1, 2, 0, 5, 40_003, 3)
LIMITS = {DType.F64: 1e-14, DType.F32: 3e-7, DType.F16: 2e-3, DType.BF16: 2e-2}


def pair(a: np.ndarray, b: np.ndarray, m: int, n: int) -> np.ndarray:
    """Of vectors that stand for ``m`` and ``n`` ranks."""
    dot, aa, bb = a @ b, a @ a, b @ b
    left = 1 - dot / aa * m / (m + n) if aa else 1
    right = 1 - dot / bb * n / (m + n) if bb else 1
    return left * a + right * b


def adasum_of(vectors: list[np.ndarray], weights: list[int]) -> np.ndarray:
    """By the definition, in the order of the vectors."""
    known = list(zip(vectors, weights, strict=True))
    rest = len(known) - (1 << (len(known).bit_length() - 1))
    take = [known[2 * i : 2 * i + 2] for i in range(rest)] + [[one] for one in known[2 * rest :]]
    while True:
        known = [
            (pair(*(x for x, _ in two), *(w for _, w in two)), sum(w for _, w in two)) if two[1:] else two[0]
            for two in take
        ]
        if len(known) == 1:
            return known[0][0]
        take = [known[i : i + 2] for i in range(0, len(known), 2)]


def cast(numbers: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """Flat bytes to flat bytes."""
    count = numbers.nbytes // itemsize(source)
    made = np.empty(count * itemsize(target), np.uint8)
    _core.cast(source, target, made.ctypes.data, numbers.ctypes.data, count)
    return made


def reduced(parts: list[np.ndarray], dtype: DType, name: str) -> list[np.ndarray]:
    """Adasum of this rank's vectors in ``dtype``, as float64."""
    memory = cast(np.concatenate(parts), DType.F64, dtype)
    vectors = Vectors(memory, dtype, tuple(map(len, parts)))
    start_adasum(slipstream.world(), vectors, name).wait()
    found = cast(memory, dtype, DType.F64).view(np.float64)
    same = slipstream.all_gather(np.array([zlib.crc32(memory.tobytes())], np.int64))
    assert (same == same[0]).all(), f"{name}: not the same bits on all ranks"
    return np.split(found, np.cumsum(vectors.counts)[:-1])


def values(rank: int, size: int) -> None:
    topology = slipstream.world().topology
    hosts = members_of_hosts(size, topology.hosts)
    for dtype, limit in LIMITS.items():
        inputs = []
        for r in range(size):
            random = np.random.default_rng(r)
            parts = [random.standard_normal(count) + 0.3 for count in COUNTS]
            inputs.append([cast(cast(x, DType.F64, dtype), dtype, DType.F64).view(np.float64) for x in parts])
        found = reduced(inputs[rank], dtype, dtype.name)
        for i, got in enumerate(found):
            parts = [[inputs[r][i] for r in members] for members in hosts]
            if topology.hierarchy == "on":
                want = adasum_of([np.mean(part, axis=0) for part in parts], [*map(len, parts)])
            else:
                want = adasum_of([x for part in parts for x in part], [1] * size)
            scale = np.abs(want).max(initial=1e-9)
            assert np.abs(got - want).max(initial=0) <= limit * scale, (dtype, i, got[:5], want[:5])


def odd(rank: int, size: int) -> None:
    unit = np.eye(size)[rank] * 3  # orthogonal: their sum
    parallel = np.arange(7.0) * (rank + 1)  # their mean, of any number of ranks
    tiny = np.full(3, 1e-30)
    lone = np.arange(3.0) if rank == size - 1 else np.zeros(3)
    spoilt = np.array([np.nan if rank == 0 else 1.0, 1.0])
    found = reduced([unit, parallel, tiny, lone, spoilt, np.zeros(4)], DType.F32, "odd")
    want = [
        np.full(size, 3.0),
        np.arange(7.0) * (size + 1) / 2,
        tiny,
        np.arange(3.0),
        np.full(2, np.nan),
        np.zeros(4),
    ]
    for got, expected in zip(found, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def differ(rank: int, size: int) -> None:
    memory = np.zeros(8 + 8 * (rank == 1), np.uint8)
    work = start_adasum(
        slipstream.world(), Vectors(memory, DType.F64, (memory.size // 8,)), f"x of rank {rank}"
    )
    try:
        work.wait()
    except slipstream.Mismatch as error:
        print(f"differ: {error}")


def break_off(rank: int, size: int) -> None:
    memory = np.zeros(8 << 20, np.uint8)
    if rank == 1:
        addresses.barrier(slipstream.world(), name="the gradients").wait()  # as all ranks call it first
        os._exit(0)
    try:
        vectors = Vectors(memory, DType.F64, (memory.size // 8,))
        start_adasum(slipstream.world(), vectors, "the gradients").wait()
    except slipstream.PeerLost as error:
        print(f"lost: {error}")


def break_amid(rank: int, size: int) -> None:
    vectors = Vectors(np.zeros(8 << 20, np.uint8), DType.F64, (1 << 20,))
    if rank == 1:
        addresses.barrier(slipstream.world(), name="the gradients").wait()
        aside, half = slipstream.world().beside("Adasum"), np.empty(vectors.count // 2)
        addresses.recv(aside, half.ctypes.data, half.size, DType.F64, 0, keep=half).wait()
        os._exit(0)  # rank 0 waits for the other half
    try:
        start_adasum(slipstream.world(), vectors, "the gradients").wait()
    except slipstream.PeerLost as error:
        print(f"lost: {error}")


def main() -> None:
    slipstream.init()
    checks = {"values": values, "odd": odd, "differ": differ, "break": break_off, "break amid": break_amid}
    checks[sys.argv[1]](slipstream.rank(), slipstream.size())
    print("done", flush=True)
    slipstream.shutdown()


if __name__ == "__main__":
    main()
