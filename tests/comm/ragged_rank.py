"""One rank of the tests of operations with blocks of any size: ragged_rank.py values|rounds|errors|memory|roots."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import slipstream
from slipstream.plan import costs

RNG = np.random.default_rng(7)  # the same on all ranks
DTYPES = (np.float32, np.int8, np.complex64, np.bool_, np.float16)
# bytes about the longest message of 2, 4 and 5 ranks, less a head
EDGES = (0, 1, 7, 300, 13040, 13072, 13080, 13100, 16351, 16352, 16353, 40000)


def rows_of(rank: int, rows: int, width: int, dtype: Any) -> Any:
    return ((np.arange(rows * width) * 7 + rank * 13) % 101).astype(dtype).reshape(rows, width)


def values() -> None:
    for turn in range(60):
        dtype = DTYPES[turn % len(DTYPES)]
        edge = EDGES[turn % len(EDGES)] // np.dtype(dtype).itemsize
        width = int(RNG.integers(1, 4))
        some = [int(r) for r in RNG.integers(0, 9, slipstream.size())]
        long = int(RNG.integers(slipstream.size()))
        some[long] = edge // width
        check(some, width, dtype, root=turn % slipstream.size(), async_op=turn % 3 == 0)


def check(rows: list[int], width: int, dtype: Any, root: int, async_op: bool) -> None:
    n, rank = slipstream.size(), slipstream.rank()
    parts = [rows_of(r, rows[r], width, dtype) for r in range(n)]
    everything = np.concatenate(parts)

    def call(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = operation(*args, **kwargs, async_op=async_op)
        return found.wait() if async_op else found

    np.testing.assert_array_equal(call(slipstream.all_gather, parts[rank]), everything)
    out = np.empty_like(everything)
    assert call(slipstream.all_gather, parts[rank], out=out) is out
    np.testing.assert_array_equal(out, everything)
    found = call(slipstream.gather, parts[rank], root)
    assert (found is None) == (rank != root)
    if rank == root:
        np.testing.assert_array_equal(found, everything)
    out = np.empty_like(parts[rank])
    assert call(slipstream.scatter, everything if rank == root else None, root, out=out) is out
    np.testing.assert_array_equal(out, parts[rank])
    # rank r sends rows[(r + p) % n] rows to rank p
    blocks = [[rows_of(10 * r + p, rows[(r + p) % n], width, dtype) for p in range(n)] for r in range(n)]
    splits = [len(block) for block in blocks[rank]]
    found = call(slipstream.all_to_all, np.concatenate(blocks[rank]), splits=splits)
    np.testing.assert_array_equal(found, np.concatenate([blocks[r][rank] for r in range(n)]))


def must_raise(kind: type[BaseException], text: str, call: Callable[[], object]) -> None:
    try:
        call()
    except kind as error:
        found = str(error)
    else:
        raise AssertionError(f"no {kind.__name__}")
    assert text in found, found


def rounds() -> None:
    """Each rank pretends to be a host, so that long blocks travel in rounds: their first 64 KiB, and the rest."""
    n, rank = slipstream.size(), slipstream.rank()
    choosing = importlib.import_module("slipstream.plan.choose")
    choosing._HOSTS_OF_ROUNDS = 3
    del costs.MANY_HOSTS["all_to_all"][
        "pairwise"
    ]  # it may cost less by what a busy machine takes for its network
    assert slipstream.world().compiled("all_to_all", 1 << 20).operation == "all_to_all/rounds"
    edges = [0, 1, 5000, 65535, 65536, 65537, 2 * 65536, 2 * 65536 + 3, 400_000]
    for turn in range(12):
        dtype = DTYPES[turn % len(DTYPES)]
        counts = RNG.choice(edges, (n, n)) // np.dtype(dtype).itemsize
        blocks = [[rows_of(10 * r + p, int(counts[r, p]), 1, dtype) for p in range(n)] for r in range(n)]
        wire = "f16" if dtype is np.float32 and turn % 2 else None  # such numbers are exact in it
        found = slipstream.all_to_all(np.concatenate(blocks[rank]), splits=counts[rank].tolist(), wire=wire)
        np.testing.assert_array_equal(found, np.concatenate([blocks[r][rank] for r in range(n)]))
    works = []
    for turn in range(4):
        x = np.arange(n * 50_000, dtype=np.int32) + 1000 * turn + rank
        works.append((x, slipstream.all_to_all(x, async_op=True)))
    for x, work in works:
        mine = x[rank * 50_000 : (rank + 1) * 50_000] - rank
        np.testing.assert_array_equal(work.wait(), np.concatenate([mine + r for r in range(n)]))


def errors() -> None:
    """All ranks raise the same, and the session goes on."""
    n, rank = slipstream.size(), slipstream.rank()
    shapes = np.zeros((n, 2 if rank == 1 else 3)), np.zeros((n, 2, 3) if rank == 1 else (n, 3, 2))
    for wide, length in ((wide, length) for wide in shapes for length in (1, 5000)):
        x = np.repeat(wide, length, axis=0)
        for call in (
            lambda x=x: slipstream.all_gather(x),
            lambda x=x: slipstream.gather(x, 1),
            lambda x=x: slipstream.scatter(x, 1, out=np.empty_like(x)),
            lambda x=x: slipstream.all_to_all(x),
        ):
            text = f"rank 0 has float64 of shape (*, {'3' if wide is shapes[0] else '3, 2'})"
            must_raise(ValueError, text, call)
        must_raise(
            ValueError,
            f"scatter: the x of rank 1 of the group, the root, is float64 of shape ({length}); the outs of all "
            f"ranks together take float64 of shape ({n})",
            lambda length=length: slipstream.scatter(np.zeros(length), 1, out=np.zeros(1)),
        )
        assert slipstream.all_reduce(np.ones(1))[0] == n


def memory() -> None:
    """Calls on memory that earlier ones still work on, and in place."""
    n, rank = slipstream.size(), slipstream.rank()
    for turn in range(20):
        big = np.full(300_000, float(turn + rank))
        work = slipstream.all_reduce(big, out=big, async_op=True)
        found = slipstream.all_gather(big[:10])
        np.testing.assert_array_equal(found, np.full(10 * n, n * turn + n * (n - 1) / 2))
        work.wait()
        work = slipstream.all_reduce(np.ones(300_000), out=big, async_op=True)
        slipstream.all_to_all(np.full(5 * n, float(rank)), out=big[: 5 * n])
        work.wait()
        np.testing.assert_array_equal(big[: 5 * n], np.repeat(np.arange(n), 5))
    room = np.zeros((n, 4))
    room[rank] = rank + 1
    slipstream.all_gather(room[rank : rank + 1], out=room)
    np.testing.assert_array_equal(room, np.repeat(np.arange(1.0, n + 1), 4).reshape(n, 4))
    slipstream.all_to_all(room, out=room)
    np.testing.assert_array_equal(room, np.full((n, 4), rank + 1.0))


def roots() -> None:
    """Every rank names another root: nobody gets a result."""
    rank = slipstream.rank()
    x = np.full(int(sys.argv[3]), rank + 1.0)
    if sys.argv[2] == "gather":
        must_raise(slipstream.Mismatch, "root=", lambda: slipstream.gather(x, rank))
    else:
        must_raise(slipstream.Mismatch, "root=", lambda: slipstream.scatter(x, rank, out=np.empty_like(x)))


slipstream.init()
{"values": values, "errors": errors, "memory": memory, "roots": roots, "rounds": rounds}[sys.argv[1]]()
slipstream.shutdown()
