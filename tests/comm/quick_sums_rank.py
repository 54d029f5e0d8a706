"""A rank that reduces arrays of all kinds again and again, which go the short way where they may."""

from __future__ import annotations

import numpy as np

import slipstream
from slipstream.base.dtypes import Op

COUNT = 5
NUMBERS = ["e", "f", "d", "b", "B", "h", "H", "i", "I", "q", "Q"]


def goes_the_short_way(x: np.ndarray, out: np.ndarray, op: Op = Op.SUM) -> bool:
    return slipstream.world().sums.run(x, out, op)


def values() -> None:
    size, rank = slipstream.size(), slipstream.rank()
    for code in [*NUMBERS, "l", "L"]:
        x = np.arange(COUNT).astype(code) + np.array(rank, code)
        for op, wanted in (
            (Op.SUM, size * x + sum(range(size)) - size * rank),
            (Op.MAX, x - rank + size - 1),
        ):
            kept = x.copy()
            for _ in range(3):
                np.testing.assert_array_equal(slipstream.all_reduce(x, op), wanted.astype(code))
                np.testing.assert_array_equal(x, kept)
            out = np.empty_like(x)
            assert goes_the_short_way(x, out, op)
            np.testing.assert_array_equal(out, wanted.astype(code))
            assert slipstream.all_reduce(out, op, out=out) is out  # in place
    truth = np.array([rank == 0, True, False])
    for _ in range(2):
        np.testing.assert_array_equal(slipstream.all_reduce(truth, Op.MAX), [True, True, False])
    for shape in [(), (0,), (1,)]:
        for _ in range(2):
            found = slipstream.all_reduce(np.ones(shape))
            assert found.shape == shape
            np.testing.assert_array_equal(found, np.full(shape, size))


def others() -> None:
    """What is refused has done nothing, so the ranks stay in step."""
    x = np.ones(COUNT)
    slipstream.all_reduce(x)
    read_only, memory = x.copy(), np.ones(COUNT + 1)
    read_only.flags.writeable = False
    assert goes_the_short_way(read_only, np.empty_like(x))
    for source, out in [
        (x, read_only),
        (x, np.ones(COUNT + 1)),
        (x, np.ones(COUNT, np.float32)),
        (x, np.ones(COUNT, np.int64)),
        (x, np.ones((1, COUNT))),
        (x.reshape(1, COUNT), np.ones((1, COUNT))),
        (np.ones(2 * COUNT)[::2], np.ones(COUNT)),
        (x, np.ones(2 * COUNT)[::2]),
        (x.astype(">f8"), x.astype(">f8")),
        (memory[1:], memory[:-1]),
        (np.ones(1 << 12), np.ones(1 << 12)),  # of a size that was not there before
        (x.astype("F"), x.astype("F")),
        (x.astype("M8[s]"), x.astype("M8[s]")),
    ]:
        assert not goes_the_short_way(source, out), (source.dtype, out.dtype, source.shape, out.shape)
    assert not goes_the_short_way(x, np.empty_like(x), Op.PROD)  # not called before
    np.testing.assert_array_equal(slipstream.all_reduce(x), np.full(COUNT, slipstream.size()))
    slipstream.world().use("all_reduce", "ring", 1 << 12)
    assert not goes_the_short_way(x, np.empty_like(x))
    for _ in range(2):
        np.testing.assert_array_equal(slipstream.all_reduce(x), np.full(COUNT, slipstream.size()))


def later() -> None:
    """A call that comes while one before it still has to copy back what it gives."""
    memory = np.ones(2 * COUNT)
    work = slipstream.all_reduce(memory[::2], async_op=True)
    x = np.ones(COUNT)
    for _ in range(3):
        np.testing.assert_array_equal(slipstream.all_reduce(x), np.full(COUNT, slipstream.size()))
    np.testing.assert_array_equal(work.wait(), np.full(COUNT, slipstream.size()))


slipstream.init()
values()
others()
later()
