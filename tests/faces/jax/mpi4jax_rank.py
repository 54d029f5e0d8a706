"""One rank of the tests of slipstream.mpi4jax: every function, in and outside of jit, against NumPy.

mpi4jax_rank.py PART...
"""

from __future__ import annotations

import functools
import operator
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream import mpi4jax
from slipstream.mpi4jax import MPI

jax.config.update("jax_enable_x64", True)
COMM = MPI.COMM_WORLD


def values(rank: int, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 7 + rank).astype(jnp.dtype(dtype))


def same(got: object, expected: object) -> None:
    np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))


def both(f):  # type: ignore[no-untyped-def]
    return f, jax.jit(f)


def operations(rank: int, n: int) -> None:
    root = n - 1
    for shape in ((), (3,), (2, 3), (5000,), (0, 2)):
        every = [values(r, shape) for r in range(n)]
        x, stacked = every[rank], np.stack(every)
        for f in both(lambda x: mpi4jax.allreduce(x, op=MPI.SUM)):
            same(f(x), sum(every))
        for f in both(lambda x: mpi4jax.reduce(x, MPI.MAX, root)):
            same(f(x), np.max(every, axis=0) if rank == root else x)
        for op, two in ((MPI.SUM, np.add), (MPI.PROD, np.multiply), (MPI.MIN, np.minimum)):
            for f in both(lambda x, op=op: mpi4jax.scan(x, op)):
                same(f(x), functools.reduce(two, every[: rank + 1]))
        for f in both(mpi4jax.allgather):
            same(f(x), stacked)
        for f in both(lambda x: mpi4jax.gather(x, root)):
            same(f(x), stacked if rank == root else x)
        for f in both(lambda x: mpi4jax.scatter(x, root)):
            same(f(stacked * 2 if rank == root else x), every[rank] * 2)
        for f in both(lambda x: mpi4jax.bcast(x, root)):
            same(f(x), every[root])
        for f in both(mpi4jax.alltoall):
            same(f(stacked + 10 * rank), np.stack([every[rank] + 10 * r for r in range(n)]))
    mpi4jax.barrier()
    jax.jit(mpi4jax.barrier)()
    assert mpi4jax.has_cuda_support() is False
    assert mpi4jax.has_sycl_support() is False


def dtypes(rank: int, n: int) -> None:
    whole = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    for dtype in ("float64", "float32", "float16", "bfloat16", "complex64", "complex128", "bool", *whole):
        every = [(np.arange(5) % 2 + r % 2).astype(jnp.dtype(dtype)) for r in range(n)]
        x = jnp.asarray(every[rank])
        same(jax.jit(mpi4jax.allgather)(x), np.stack(every))
        same(mpi4jax.sendrecv(x, x, (rank - 1) % n, (rank + 1) % n), every[rank - 1])
        found = jax.jit(lambda x: mpi4jax.allreduce(x, MPI.LXOR))(x)
        same(found, functools.reduce(np.logical_xor, [e != 0 for e in every]).astype(jnp.dtype(dtype)))
        same(mpi4jax.allreduce(x, MPI.LAND), np.all([e != 0 for e in every], axis=0))
        found = mpi4jax.reduce(x, MPI.LAND, 0)  # the other ranks get their arrays back
        same(found, x if rank else np.all([e != 0 for e in every], axis=0).astype(jnp.dtype(dtype)))
        same(mpi4jax.scan(x, MPI.LOR), np.any([e != 0 for e in every[: rank + 1]], axis=0))
        if dtype in (*whole, "bool"):
            for op, two in ((MPI.BAND, operator.and_), (MPI.BOR, operator.or_), (MPI.BXOR, operator.xor)):
                same(mpi4jax.allreduce(x, op), functools.reduce(two, every))
        if dtype != "bool":
            got = mpi4jax.allreduce(x, MPI.SUM)
            assert got.dtype == x.dtype
            same(np.asarray(got).astype("complex128"), sum(e.astype("complex128") for e in every))
    with pytest.raises(TypeError, match="int4"):
        mpi4jax.allgather(jnp.zeros(4, jnp.int4))
    with pytest.raises(ValueError, match="BAND is not defined for float32"):
        mpi4jax.allreduce(jnp.ones(2, jnp.float32), MPI.BAND)
    with pytest.raises(ValueError, match="MAX is not defined for complex64"):
        mpi4jax.reduce(jnp.ones(2, jnp.complex64), MPI.MAX, 0)


def messages(rank: int, n: int) -> None:
    alone = mpi4jax.sendrecv(jnp.arange(3), jnp.zeros(3, int), rank, rank)
    same(alone, np.arange(3))
    mpi4jax.send(jnp.float32(rank), rank, tag=5)  # to itself
    status = MPI.Status()
    same(mpi4jax.recv(jnp.float32(0), rank, status=status), rank)
    jax.effects_barrier()
    assert (status.Get_source(), status.Get_tag(), status.count) == (rank, 5, 4)
    if n == 1:
        return
    following, before = (rank + 1) % n, (rank - 1) % n
    for shape in ((), (7,), (30_000,)):
        every = [values(r, shape) for r in range(n)]

        def out_of_order(x):  # type: ignore[no-untyped-def]
            """The even ranks send, the others take the last message first. With an odd number rank 0 sends to none."""
            if rank % 2 == 0 and following:
                mpi4jax.send(x[:5] if x.shape else x, following, tag=1)
                mpi4jax.send(x * 2 if x.nbytes < 4000 else x[:9], following, tag=2)
                mpi4jax.send(x * 3, following, tag=1)
                return x
            if rank % 2 == 1:
                second = mpi4jax.recv(x if x.nbytes < 4000 else x[:9], before, tag=2)
                first = mpi4jax.recv(x[:5] if x.shape else x, before)
                third = mpi4jax.recv(x, before)
                return first, second, third
            return x

        for f in both(out_of_order):
            got = f(jnp.asarray(every[rank]))
            if rank % 2 == 1:
                sent = every[before]
                same(got[0], sent[:5] if shape else sent)
                same(got[1], sent * 2 if sent.nbytes < 4000 else sent[:9])
                same(got[2], sent * 3)
        for f in both(lambda x: mpi4jax.sendrecv(x, x, before, following, sendtag=rank, recvtag=before)):
            same(f(every[rank]), every[before])
        for status in (MPI.Status(), MPI.Status()):
            ring = jax.jit(
                lambda x, s=status: mpi4jax.sendrecv(x, x, before, following, sendtag=rank, status=s)
            )
            ring(every[rank]).block_until_ready()
            assert (status.Get_source(), status.Get_tag()) == (before, before)
    # The ends of a line: PROC_NULL.
    up = rank + 1 if rank + 1 < n else MPI.PROC_NULL
    down = rank - 1 if rank else MPI.PROC_NULL
    for dtype in ("float32", "int32"):
        for f in both(lambda x: mpi4jax.sendrecv(x, x * 0 - 1, down, up)):
            same(f(values(rank, (4,), dtype)), values(rank - 1, (4,), dtype) if rank else np.full(4, -1))
    if n == 2:
        same(
            mpi4jax.sendrecv(jnp.ones(2) * rank, jnp.ones(2), MPI.ANY_SOURCE, 1 - rank),
            np.ones(2) * (1 - rank),
        )


def order(rank: int, n: int) -> None:
    """All operations run, in the order of the program: also those without results, in loops and branches."""

    def step(carry, x):  # type: ignore[no-untyped-def]
        mpi4jax.allreduce(x[:2], MPI.MAX)  # unused, and of another size
        return mpi4jax.allreduce(carry + x, MPI.SUM), mpi4jax.bcast(carry, 0)

    run = jax.jit(lambda xs: jax.lax.scan(step, jnp.zeros(3), xs))
    for _ in range(3):
        carry, outs = run(jnp.ones((4, 3)))
        mpi4jax.allgather(carry)  # unused, between two compiled functions
    expected = [0.0]
    for _ in range(4):
        expected.append((expected[-1] + 1) * n)
    same(carry, [expected[-1]] * 3)
    same(outs, [[e] * 3 for e in expected[:-1]])
    branch = jax.jit(lambda p, v: jax.lax.cond(p, lambda y: mpi4jax.allreduce(y, MPI.SUM), lambda y: y, v))
    same(branch(True, jnp.ones(3)), np.full(3, n))
    same(branch(False, jnp.ones(3)), np.ones(3))
    loop = jax.jit(
        lambda v: jax.lax.while_loop(lambda y: y[0] < 100, lambda y: mpi4jax.allreduce(y, MPI.SUM) + 1, v)
    )
    value = 1.0
    while value < 100:
        value = value * n + 1
    same(loop(jnp.ones(2)), np.full(2, value))
    many = [jax.jit(lambda x, i=i: mpi4jax.allreduce(x[: i + 1], MPI.SUM)) for i in range(20)]
    for i, f in reversed([*enumerate(many)]):
        same(f(jnp.ones(40)), np.full(i + 1, n))


def derivatives(rank: int, n: int) -> None:
    x, w = jnp.arange(1.0, 7).reshape(3, 2) + rank, jnp.arange(6.0).reshape(3, 2) * (rank + 1)
    total = lambda v: mpi4jax.allreduce(v, MPI.SUM)  # noqa: E731
    for f in both(jax.grad(lambda v: (total(v) * w).sum())):
        same(f(x), w)  # the cotangent is the rank's own
    for f in both(lambda a, b: jax.jvp(total, (a,), (b,))):
        value, tangent = f(x, w)
        same(value, sum(np.asarray(x) - rank + r for r in range(n)))
        same(tangent, sum(np.asarray(w) / (rank + 1) * (r + 1) for r in range(n)))
    transposed = lambda v: jax.linear_transpose(total, x)(v)[0]  # noqa: E731
    same(transposed(w), w)
    same(jax.linear_transpose(transposed, x)(jnp.ones((3, 2)))[0], np.full((3, 2), n))
    same(jax.jit(jax.vmap(jax.grad(lambda v: (total(v) * w[0]).sum())))(x), np.tile(w[0], (3, 1)))
    with pytest.raises(NotImplementedError, match="SUM"):
        jax.grad(lambda v: mpi4jax.allreduce(v, MPI.MAX).sum())(x)
    following, before = (rank + 1) % n, (rank - 1) % n
    for tags in ({}, {"sendtag": rank, "recvtag": before}):
        ring = lambda v, tags=tags: mpi4jax.sendrecv(v, v, before, following, **tags)  # noqa: E731
        for f in both(jax.grad(lambda v, ring=ring: (ring(v) * w).sum())):
            same(f(x), np.asarray(w) / (rank + 1) * (following + 1))
        twice = jax.jit(jax.grad(lambda v, ring=ring: (ring(jnp.sin(ring(v))) * w).sum()))
        np.testing.assert_allclose(
            twice(x), np.cos(np.asarray(x)) * np.asarray(w) / (rank + 1) * ((rank + 2) % n + 1), rtol=1e-12
        )
        with pytest.raises(RuntimeError, match="forward mode"):
            jax.jvp(ring, (x,), (x,))
    up = rank + 1 if rank + 1 < n else MPI.PROC_NULL
    down = rank - 1 if rank else MPI.PROC_NULL
    line = jax.jit(jax.grad(lambda v: (mpi4jax.sendrecv(v, v, down, up) * w).sum()))
    same(line(x), np.asarray(w) / (rank + 1) * (rank + 2) if rank + 1 < n else 0 * w)


def mapped(rank: int, n: int) -> None:
    x = jnp.arange(24.0).reshape(2, 3, 4) + rank
    every = [np.arange(24.0).reshape(2, 3, 4) + r for r in range(n)]
    before, following = (rank - 1) % n, (rank + 1) % n
    for axis in (0, 1, 2):
        turned = lambda f, axis=axis: jax.jit(jax.vmap(f, in_axes=axis, out_axes=axis))  # noqa: E731
        same(turned(lambda v: mpi4jax.allreduce(v, MPI.SUM))(x), sum(every))
        same(turned(lambda v: mpi4jax.bcast(v, 0))(x), every[0])
        same(turned(lambda v: mpi4jax.sendrecv(v, v, before, following))(x), every[before])


def communicators(rank: int, n: int) -> None:
    assert (COMM.Get_rank(), COMM.Get_size(), COMM.rank, COMM.size) == (rank, n, rank, n)
    for comm in (COMM.Clone(), COMM.Dup(), COMM.Split(0, 0)):
        same(mpi4jax.allreduce(jnp.float32(1), MPI.SUM, comm=comm), n)
        comm.Free()
    backwards = COMM.Split(0, -rank)
    same(mpi4jax.allgather(jnp.int32(rank), comm=backwards), np.arange(n)[::-1])
    some = COMM.Split(rank % 2 if n > 2 else MPI.UNDEFINED, 0)
    if n > 2:
        same(mpi4jax.allreduce(jnp.int32(1), MPI.SUM, comm=some), len(range(rank % 2, n, 2)))
    else:
        assert not some
    same(mpi4jax.allreduce(jnp.float32(rank), MPI.SUM, comm=MPI.COMM_SELF), rank)
    pending = mpi4jax.allreduce(jnp.ones(100_000), MPI.SUM)  # objects do not get in its way
    assert COMM.allgather({"rank": rank}) == [{"rank": r} for r in range(n)]
    assert COMM.bcast([rank], root=n - 1) == [n - 1]
    assert COMM.gather(rank, root=0) == ([*range(n)] if rank == 0 else None)
    assert COMM.scatter([*"abcd"][:n] if rank == 0 else None) == "abcd"[rank]
    assert COMM.allreduce(rank) == sum(range(n))
    assert COMM.reduce(rank, op=MPI.MAX) == (n - 1 if rank == 0 else None)
    COMM.Barrier()
    same(pending[:2], [n, n])
    with pytest.raises(AttributeError, match="Create_cart"):
        COMM.Create_cart([1])
    with pytest.raises(AttributeError, match="DOUBLE"):
        MPI.DOUBLE  # noqa: B018


def mistakes(rank: int, n: int) -> None:
    x = jnp.ones(n + 1)
    for text, error, f in (
        (r"must have shape \(nproc, ...\)", ValueError, lambda: mpi4jax.alltoall(x)),
        ("root 9", ValueError, lambda: mpi4jax.bcast(x, 9)),
        ("dest 9", ValueError, lambda: mpi4jax.send(x, 9)),
        ("tag -3", ValueError, lambda: mpi4jax.send(x, 0, tag=-3)),
        ("dest must be an int, not bool", TypeError, lambda: mpi4jax.send(x, True)),
        ("op must be", TypeError, lambda: mpi4jax.allreduce(x, "sum")),
        ("comm must be", TypeError, lambda: mpi4jax.allreduce(x, MPI.SUM, comm=[0])),
        ("status must be", TypeError, lambda: mpi4jax.recv(x, 0, status=1)),
        ("static_argnums", TypeError, lambda: jax.jit(lambda r: mpi4jax.bcast(x, r))(0)),
        ("no tokens", RuntimeError, lambda: mpi4jax.allreduce(x, MPI.SUM, token=None)),
        ("itself no message", jax.errors.JaxRuntimeError, lambda: mpi4jax.recv(x, rank).block_until_ready()),
    ):
        with pytest.raises((error, ValueError) if error is jax.errors.JaxRuntimeError else error, match=text):
            f()
    if n > 2:
        with pytest.raises(ValueError, match="needs the source"):
            mpi4jax.recv(x)


def main() -> None:
    rank, n = COMM.Get_rank(), COMM.Get_size()
    parts = (operations, dtypes, messages, order, derivatives, mapped, communicators, mistakes)
    for part in parts:
        if part.__name__ in sys.argv[1:]:
            part(rank, n)
            print(part.__name__, flush=True)


if __name__ == "__main__":
    main()
