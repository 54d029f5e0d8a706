"""One of several ranks whose float32 data travels between hosts in a wire type: wire_types_rank.py WIRE."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import slipstream
from slipstream.base.dtypes import DType, Op, as_wire, wire_share
from slipstream.base.training import saved_bytes
from slipstream.comm.collectives import addresses

WIRE = sys.argv[1]
# Of the largest number: what a hop may add to the error.
PRECISION = {"bf16": 2.0**-8, "f16": 2.0**-11, "f8": 2.0**-4, "int8": 1 / 254}[WIRE]
COUNTS = (1, 255, 257, 5000, 100_003)
ALGORITHMS = (None, "ring", "halving_doubling", "direct", "bidirectional_ring", "tree", "hierarchical")

Floats = NDArray[np.float32]


def numbers(rank: int, count: int) -> Floats:
    return np.random.default_rng(rank).uniform(1, 2, count).astype(np.float32)


def check_same_bits(x: Floats) -> None:
    everybody = slipstream.all_gather(x.view(np.uint32)).reshape(size, -1)
    assert (everybody == everybody[0]).all()


def check_close(x: Floats, wanted: NDArray[Any], hops: float) -> None:
    error = float(np.abs(x - wanted).max())
    assert error <= float(wanted.max()) * PRECISION * hops * 1.02, (error, x.size)


def check_sums(algorithm: str | None) -> None:
    for count in COUNTS:
        wanted = np.sum([numbers(r, count).astype(np.float64) for r in range(size)], axis=0)
        mine = numbers(rank, count)
        for op, scale in ((Op.SUM, 1.0), (Op.AVG, 1 / size)):
            x = slipstream.all_reduce(mine, op, wire=WIRE)
            check_same_bits(x)
            check_close(x, wanted * scale, size / 2 + 2)
        x = mine.copy()
        slipstream.all_reduce(
            x, out=x, wire=WIRE, prescale=0.5, postscale=3.0, async_op=True, name="named"
        ).wait()
        check_same_bits(x)
        check_close(x, wanted * 1.5, size / 2 + 2)
    if algorithm is None:
        x = slipstream.reduce_scatter(numbers(rank, 10_000), "avg", wire=WIRE)
        counts = [10_000 // size + (r < 10_000 % size) for r in range(size)]
        begin = sum(counts[:rank])
        wanted = np.mean([numbers(r, 10_000).astype(np.float64) for r in range(size)], axis=0)
        check_close(x, wanted[begin : begin + counts[rank]], size / 2 + 2)


def check_moves() -> None:
    count = 30_011
    mine = numbers(rank, count)
    x = slipstream.all_gather(mine, wire=WIRE)
    check_same_bits(x)
    check_close(x, np.concatenate([numbers(r, count) for r in range(size)]), 1)
    assert (x != np.concatenate([numbers(r, count) for r in range(size)])).any()
    in_place = np.zeros_like(x)
    in_place[rank * count : (rank + 1) * count] = mine
    address = in_place.ctypes.data
    own = address + rank * count * 4
    addresses.all_gather(group, own, address, [count] * size, DType.F32, wire=WIRE, keep=in_place).wait()
    assert in_place.tobytes() == x.tobytes()
    rows = numbers(rank, size * count)
    before = saved_bytes()
    y = slipstream.all_to_all(rows, wire=WIRE)
    sent = 4 * (size - 1) * count
    assert saved_bytes() - before == int(sent * (1 - wire_share(as_wire(WIRE))))
    wanted = np.concatenate(
        [numbers(r, size * count)[rank * count : (rank + 1) * count] for r in range(size)]
    )
    check_close(y, wanted, 1)
    assert slipstream.all_gather(np.float32([rank]), wire=WIRE).tolist() == list(range(size))


def refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    raise AssertionError("taken")


def check_refusals() -> None:
    refused(lambda: slipstream.all_reduce(np.ones(9), wire=WIRE))
    refused(lambda: slipstream.all_reduce(np.ones(9, np.float32), "max", wire=WIRE))
    refused(lambda: slipstream.all_gather(np.ones(9, np.int32), wire=WIRE))
    refused(lambda: slipstream.all_reduce(np.ones(9, np.float32), wire="int7"))
    group.use("all_reduce", "recursive_doubling", 64 << 10)
    text = refused(lambda: slipstream.all_reduce(np.ones(9, np.float32), wire=WIRE))
    assert "recursive_doubling" in text


def check_bytes() -> None:
    x = np.ones(1 << 20, np.float32)
    for collective, share in (
        (slipstream.all_reduce, 2 * (size - 1) / size),
        (slipstream.reduce_scatter, (size - 1) / size),
    ):
        before = sum(link.sent for link in slipstream.link_statistics())
        collective(x, wire=WIRE)
        part = (sum(link.sent for link in slipstream.link_statistics()) - before) / (share * x.nbytes)
        least = {"bf16": 0.5, "f16": 0.504, "f8": 0.254, "int8": 0.254}[WIRE]
        assert least * 0.98 < part < least * 1.05, part


slipstream.init()
rank, size, group = slipstream.rank(), slipstream.size(), slipstream.world()
spread = len(set(group.topology.hosts)) == size
if spread:
    check_bytes()
for algorithm in ALGORITHMS:
    if algorithm is not None:
        group.use("all_reduce", algorithm, 16 << 10)
    if algorithm != "hierarchical" or spread or size % 2 == 0:
        check_sums(algorithm)
check_moves()
check_refusals()
slipstream.shutdown()
