"""One of two ranks whose processors are not alike: its SLIPSTREAM_CPU is another one. Both must have the same bits.

levels_rank.py DTYPE...: f32 may differ, where a NaN is.
"""

from __future__ import annotations

import sys

import numpy as np

import slipstream
from slipstream import _core
from slipstream.base.dtypes import DType, Op
from slipstream.comm.collectives import addresses
from slipstream.plan.registry import algorithms

slipstream.init()
rank, group = slipstream.rank(), slipstream.world()
kinds = {"f16": (DType.F16, np.uint16), "bf16": (DType.BF16, np.uint16), "f32": (DType.F32, np.uint32)}
differ = []
for name in sys.argv[1:]:
    dtype, bits = kinds[name]
    # Every number of 16 bits there is, NaNs of all kinds too, each beside another one; in f32 as its upper half.
    mine = np.random.default_rng(rank).permutation(1 << 16).astype(bits)
    if bits is np.uint32:
        mine = (mine << 16) | np.arange(1 << 16, dtype=bits)
    for algorithm in [one for one in algorithms("all_reduce") if not one.startswith("hierarchical")]:
        group.use("all_reduce", algorithm, 16 << 10)
        for op in (Op.SUM, Op.PROD, Op.MIN, Op.MAX, Op.AVG):
            for prescale in (1.0, 1 / 3):
                for out in (mine.copy(), np.empty_like(mine)):
                    given = out if (out == mine).all() else mine
                    addresses.all_reduce(
                        group,
                        given.ctypes.data,
                        out.ctypes.data,
                        out.size,
                        int(dtype),
                        int(op),
                        prescale=prescale,
                        keep=(given, out),
                    ).wait()
                    both = slipstream.all_gather(out)
                    if (both[: out.size] != both[out.size :]).any():
                        differ.append(f"{name} {op.name} {algorithm} {prescale:g}")
print(_core.cpu_level(), differ)
slipstream.shutdown()
