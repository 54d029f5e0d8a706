"""A rank among hosts with several ranks. hierarchy_rank.py values | plan

values    both plans by hosts on many sizes, in place and not: exact values, and for others the same bits on all ranks
plan      prints which plan a large all_reduce takes
"""

from __future__ import annotations

import sys
import zlib

import numpy as np
from expected import data, reduce_arrays, same

import slipstream
from slipstream.base.dtypes import DType, Op
from slipstream.plan.registry import algorithms


def values(rank: int, size: int) -> None:
    group = slipstream.world()
    for algorithm in [name for name in algorithms("all_reduce") if name.startswith("hierarchical")]:
        group.use("all_reduce", algorithm, 4 << 10)
        for dtype, op in ((DType.F32, Op.SUM), (DType.BF16, Op.AVG), (DType.I64, Op.MAX), (DType.Q8, Op.SUM)):
            for count in (0, 7, 20_003) if dtype is DType.F32 else (1023,):
                what = f"{algorithm} of {count} {dtype.name} {op.name}"
                inputs = [data(r, count, dtype, op) for r in range(size)]
                total = reduce_arrays(inputs, dtype, op)
                got = slipstream.all_reduce(inputs[rank], op)
                same(what, got, total)
                same(f"the input of {what}", inputs[rank], data(rank, count, dtype, op))
                slipstream.all_reduce(inputs[rank], op, out=inputs[rank])
                same(f"in place {what}", inputs[rank], total)
        rounds = slipstream.all_reduce(np.random.default_rng(rank).standard_normal(70_001))
        sums = slipstream.all_gather(np.array([zlib.crc32(rounds.tobytes())], dtype=np.int64))
        assert len(set(sums.tolist())) == 1, f"{algorithm}: ranks hold different bits: {sums}"


def main() -> None:
    slipstream.init()
    if sys.argv[1] == "values":
        values(slipstream.rank(), slipstream.size())
    else:
        print("plan", slipstream.world().compiled("all_reduce", 64 << 20).operation)
    slipstream.shutdown()


main()
