"""One rank of two, of which rank 1 flushes subnormal numbers to zero: prints a checksum of its results."""

from __future__ import annotations

import zlib

import numpy as np
import torch

import slipstream


def main() -> None:
    slipstream.init()
    odd = slipstream.rank() == 1
    assert torch.set_flush_denormal(odd)
    checksum = 0
    for n in (1, 5, 1000, 30_000):
        numbers = np.arange(1, n + 1, dtype=np.int32) % 100 + 1
        mine = numbers.view(np.float32) if n % 2 == 0 else np.full(n, 3, dtype=np.int32).view(np.float32)
        for turn in range(20):  # who drives the engine, this thread or its own, is up to chance
            work = slipstream.all_reduce(mine, async_op=turn % 2 == 0)
            total = work.wait() if turn % 2 == 0 else work
            checksum = zlib.crc32(total.tobytes(), checksum)
            assert (total.view(np.int32) == 2 * mine.view(np.int32)).all(), total.view(np.int32)[:8]
    torch.set_flush_denormal(False)
    print(checksum)
    slipstream.shutdown()


main()
