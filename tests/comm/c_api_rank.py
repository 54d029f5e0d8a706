"""One rank of the test of the C table: every collective and way to call it, against NumPy, on odd sizes.

Inputs are small whole numbers, so that every sum is exact and results must be equal to the bit.
"""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest
from c_table import Call, Caller, Failed
from expected import data, reduce_arrays, same

import slipstream
from slipstream import _core
from slipstream.base.dtypes import DType, Op
from slipstream.comm.collectives.native_calls import handle_of

WAYS = ("run", "submit", "begin")
SIZES = (0, 1, 7, 1023, (1 << 16) + 3)


def reductions(c: Caller, rank: int, n: int) -> None:
    for dtype in DType:
        for op in Op:
            if not _core.reduces(dtype, op):
                assert not c.table.reduces(dtype, op)
                continue
            for i, count in enumerate(SIZES if (dtype, op) == (DType.F32, Op.SUM) else SIZES[1:4]):
                way, what = WAYS[i % 3], f"{dtype.name} {op.name} x {count}"
                mine = data(rank, count, dtype, op)
                whole = reduce_arrays([data(r, count, dtype, op) for r in range(n)], dtype, op)
                got = np.zeros_like(mine)
                c.call("all_reduce", mine, got, count, op=op, way=way)
                same(f"all_reduce {what} by {way}", got, whole)
                place = mine.copy()
                c.call("all_reduce", place, place, count, op=op, way=way)
                same(f"all_reduce in place {what} by {way}", place, whole)
                root = count % n
                c.call("reduce", mine, got, count, op=op, root=root, way=way)
                if rank == root:
                    same(f"reduce {what}", got, whole)


def blocks(c: Caller, rank: int, n: int) -> None:
    for way in WAYS:
        for count in SIZES:
            every = [data(r, count * n, DType.F32, Op.SUM) for r in range(n)]
            mine, own = every[rank], np.zeros(count, np.float32)
            c.call("reduce_scatter", mine, own, count, way=way)
            same("reduce_scatter", own, sum(every)[rank * count : (rank + 1) * count])
            parts = [every[r][:count] for r in range(n)]
            got = np.zeros(count * n, np.float32)
            c.call("all_gather", parts[rank].copy(), got, count, way=way)
            same("all_gather", got, np.concatenate(parts))
            root = count % n
            got[:] = 0
            c.call("gather", parts[rank].copy(), got if rank == root else None, count, root=root, way=way)
            same("gather", got, np.concatenate(parts) if rank == root else np.zeros_like(got))
            c.call("scatter", mine if rank == root else None, own, count, root=root, way=way)
            same("scatter", own, every[root][rank * count : (rank + 1) * count])
            c.call("all_to_all", mine, got, count, way=way)
            sent = [every[r][rank * count : (rank + 1) * count] for r in range(n)]
            same("all_to_all", got, np.concatenate(sent))
            own[:] = every[root][:count] if rank == root else 0
            c.call("broadcast", own if rank == root else None, own, count, root=root, way=way)
            same("broadcast", own, every[root][:count])
        c.call("barrier", way=way)


def ragged(c: Caller, rank: int, n: int) -> None:
    for way in WAYS:
        counts = [3 * r + 1 for r in range(n)]
        begins = np.cumsum([0, *counts])
        every = [data(r, int(begins[-1]), DType.I64) for r in range(n)]
        own = np.zeros(counts[rank], np.int64)
        c.call("reduce_scatter", every[rank], own, counts=counts, op=int(Op.MAX), way=way)
        same("reduce_scatter", own, np.max(every, axis=0)[begins[rank] : begins[rank + 1]])
        parts = [every[r][: counts[r]] for r in range(n)]
        got = np.zeros(begins[-1], np.int64)
        got[begins[rank] : begins[rank + 1]] = parts[rank]
        c.call("all_gather", got[begins[rank] :], got, counts=counts, way=way)  # in its place
        same("all_gather", got, np.concatenate(parts))
        c.call("scatter", every[1 % n], own, counts=counts, root=1 % n, way=way)
        same("scatter", own, every[1 % n][begins[rank] : begins[rank + 1]])
        got[:] = 0
        c.call("gather", parts[rank].copy(), got, counts=counts, root=0, way=way)
        same("gather", got, np.concatenate(parts) if rank == 0 else np.zeros_like(got))
        send = [rank + p + 1 for p in range(n)]  # the same in both directions
        source = np.arange(sum(send)) + 1000 * rank
        got = np.zeros(sum(send), np.int64)
        c.call("all_to_all", source, got, counts=send, recv_counts=send, way=way)
        blocks_of = [
            np.split(
                np.arange(sum(r + p + 1 for p in range(n))) + 1000 * r,
                np.cumsum([r + p + 1 for p in range(n)]),
            )
            for r in range(n)
        ]
        same("all_to_all", got, np.concatenate([blocks_of[r][rank] for r in range(n)]))


def messages(c: Caller, rank: int, n: int) -> None:
    if n == 1:
        return
    for tag, count in enumerate(SIZES):
        mine, got = data(rank, count, DType.I32), np.zeros(count, np.int32)
        sending = threading.Thread(
            target=c.call, args=("send", mine, None, count), kwargs={"root": (rank + 1) % n, "tag": tag}
        )
        sending.start()
        c.call("recv", None, got, count, root=(rank - 1) % n, tag=tag, way=WAYS[tag % 3])
        sending.join()
        same("recv", got, data((rank - 1) % n, count, DType.I32))


def scales_and_names(c: Caller, rank: int, n: int) -> None:
    x = np.full(5, rank + 1.0, np.float64)
    for _ in range(3):
        got = np.zeros_like(x)
        c.call("all_reduce", x, got, 5, prescale=2.0, postscale=0.5, label="scaled", timeout=60.0)
        same("scaled", got, np.full(5, n * (n + 1) / 2))
    # Python's calls and C's are one line of calls of the group
    for i in range(6):
        got = np.zeros_like(x)
        c.call("all_reduce", x, got, 5, way=WAYS[i % 3])
        same("C", got, slipstream.all_reduce(x))


def groups(c: Caller, rank: int, n: int) -> None:
    t = c.table
    assert (t.group_rank(c.group), t.group_size(c.group)) == (rank, n)
    members = (ctypes.c_int32 * n)()
    c.check(t.group_ranks(c.group, members))
    assert list(members) == list(range(n))
    again = ctypes.c_void_p()
    c.check(t.group_by_id(0, ctypes.byref(again)))
    assert again.value == c.group
    c.check(t.group_by_id(t.group_id(c.group), ctypes.byref(again)))
    assert again.value == c.group
    t.group_release(again)
    t.group_release(again)

    turned = slipstream.Group([*range(n)][::-1])
    own = Caller(handle_of(turned))
    assert t.group_rank(own.group) == n - 1 - rank
    x, got = np.array([rank]), np.zeros(n, np.int64)
    own.call("all_gather", x, got, 1)
    same("turned", got, np.arange(n)[::-1])
    turned.use("all_reduce", "ring", 4096)  # what the table has kept is made anew
    total = np.zeros(1, np.int64)
    for _ in range(2):
        own.call("all_reduce", x, total, 1)
    same("sum", total, np.array([n * (n - 1) // 2]))
    t.group_release(own.group)

    made = ctypes.c_void_p()
    c.check(t.group_make((ctypes.c_int32 * n)(*range(n)), n, ctypes.byref(made)))
    assert t.group_id(made) != t.group_id(c.group)
    Caller(made.value).call("barrier")
    t.group_release(made)


def several_threads(rank: int, n: int) -> None:
    """A group for each, so that they need no order among them."""
    handles = [handle_of(slipstream.Group(range(n))) for _ in range(4)]
    wrong: list[str] = []

    def work(index: int) -> None:
        own = Caller(handles[index])
        for i in range(60):
            x = np.full(17, rank + index + i, np.float32)
            got = np.zeros_like(x)
            own.call("all_reduce", x, got, 17, way=WAYS[i % 3])
            if not (got == n * (index + i) + n * (n - 1) // 2).all():
                wrong.append(f"thread {index}, call {i}: {got}")

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    for handle in handles:
        Caller(handle).table.group_release(handle)


def waits_in_callbacks(c: Caller, rank: int, n: int) -> None:
    """A callback calls an operation and waits for its callback, and so on: threads must not run out."""
    done: list[int] = []

    def nested(depth: int) -> None:
        x = np.ones(3, np.float32)
        if depth:
            inner = threading.Thread(target=nested, args=(depth - 1,))
            inner.start()
            inner.join()
        c.call("all_reduce", x, x, 3, way="submit")
        done.append(int(x[0]))

    nested(5)
    assert done == [n] * 6

    from c_table import Done

    ended = threading.Event()
    inside: list[float] = []
    keep = []

    def chain(depth: int) -> None:
        x = np.ones(3, np.float32)
        mine = threading.Event()

        def told(_: int | None, status: int, message: bytes) -> None:
            assert status == 0, message
            if depth:
                chain(depth - 1)
            inside.append(float(x[0]))
            mine.set()

        callback = Done(told)
        call = Call(struct_bytes=ctypes.sizeof(Call), collective=1, count=3, dtype=1, prescale=1, postscale=1)
        call.src = call.dst = x.ctypes.data
        keep.append((callback, x))
        c.check(c.table.submit(c.group, ctypes.byref(call), callback, None))
        assert mine.wait(120)
        if depth == 5:
            ended.set()

    chain(5)
    assert ended.is_set()
    assert inside == [n] * 6


def mistakes(c: Caller, rank: int, n: int) -> None:
    x, y = np.ones(4, np.float32), np.ones(4, np.float32)
    for text, arguments in (
        ("struct_bytes", ("all_reduce", x, y, 4, {"struct_bytes": 8})),
        ("no collective 77", ("all_reduce", x, y, 4, {"collective": 77})),
        ("unknown dtype", ("all_reduce", x, y, 4, {"dtype": 99})),
        ("unknown op", ("all_reduce", x, y, 4, {"op": -1})),
        ("not defined", ("all_reduce", x, y, 4, {"op": int(Op.BAND)})),
        ("overlap", ("all_reduce", x, x[1:], 3, {})),
        ("NULL", ("all_reduce", None, y, 4, {})),
        ("root 9", ("broadcast", x, y, 4, {"root": 9})),
        ("not another rank", ("send", x, None, 4, {"root": rank})),
        ("too large", ("all_reduce", x, y, 1 << 62, {})),
        ("recv_counts", ("all_to_all", x, y, 1, {"counts": [1] * n})),
        ("only float32", ("all_reduce", np.ones(4), np.ones(4), 4, {"wire": 1})),
        ("timeout", ("all_reduce", x, y, 4, {"timeout": -1.0})),
    ):
        *where, fields = arguments
        for way in WAYS:
            with pytest.raises(Failed, match=text) as found:
                c.call(*where, way=way, **fields)
            assert found.value.status == 6
    c.call("barrier")


def failure(c: Caller, rank: int, n: int) -> None:
    x = np.ones(9 if rank else 8, np.float32)
    for way in ("submit", "run", "begin"):
        with pytest.raises(Failed, match="unlike") as found:
            c.call("all_reduce", x, x, len(x), way=way, label="unlike")
        assert found.value.status in (2, 5)
    with pytest.raises(slipstream.SlipstreamError):  # errors stay
        slipstream.barrier()


def main() -> None:
    slipstream.init()
    rank, n = slipstream.rank(), slipstream.size()
    c = Caller()
    reductions(c, rank, n)
    blocks(c, rank, n)
    ragged(c, rank, n)
    messages(c, rank, n)
    scales_and_names(c, rank, n)
    groups(c, rank, n)
    several_threads(rank, n)
    waits_in_callbacks(c, rank, n)
    mistakes(c, rank, n)
    c.table.group_release(c.group)
    slipstream.shutdown()
    slipstream.init()  # a new world
    c = Caller()
    c.call("barrier")
    if n > 1:
        failure(c, rank, n)


if __name__ == "__main__":
    main()
