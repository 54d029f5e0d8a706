"""One rank of the tests of slipstream.jax: every operation, in and outside of jit, and its derivative."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import slipstream.jax as hvd

jax.config.update("jax_enable_x64", True)


def values(rank: int, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    whole = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 7 + rank
    return whole.astype(jnp.dtype(dtype))


def same(got: object, expected: object) -> None:
    np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))


def both(f):  # type: ignore[no-untyped-def]
    """The operation as it is, and inside jit."""
    return f, jax.jit(f)


def operations(rank: int, n: int) -> None:
    for shape in ((), (n,), (2 * n, 3), (n * 4099,), (0, 2)):
        every = [values(r, shape) for r in range(n)]
        for f in both(lambda x: hvd.allreduce(x, hvd.Sum)):
            same(f(every[rank]), sum(every))
        for f in both(lambda x: hvd.allreduce(x, "max")):
            same(f(every[rank]), np.max(every, axis=0))
        for f in both(lambda x: hvd.allreduce(x, prescale_factor=2.0, postscale_factor=n)):
            same(f(every[rank]), sum(every) * 2)
        for f in both(lambda x: hvd.broadcast(x, n - 1)):
            same(f(every[rank]), every[n - 1])
        if not shape:
            continue
        for f in both(hvd.allgather):
            same(f(every[rank]), np.concatenate(every))
        rows = shape[0] // n
        for f in both(lambda x: hvd.reducescatter(x, hvd.Sum)):
            same(f(every[rank]), sum(every)[rank * rows : (rank + 1) * rows])
        for f in both(hvd.alltoall):
            same(f(every[rank]), np.concatenate([x[rank * rows : (rank + 1) * rows] for x in every]))


def dtypes(rank: int, n: int) -> None:
    for dtype in (
        *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "int16"),
        *("int32", "int64", "uint8", "uint16", "uint32", "uint64", "complex64", "complex128", "bool"),
    ):
        every = [
            (np.arange(5) % 2 + r).astype(jnp.dtype(dtype)) for r in range(n)
        ]  # f8 has few whole numbers
        op = "bor" if dtype == "bool" else "sum"
        expected = (
            np.logical_or.reduce(every) if dtype == "bool" else sum(x.astype("complex128") for x in every)
        )
        for f in both(lambda x, op=op: hvd.allreduce(x, op)):
            got = f(every[rank])
            assert got.dtype == jnp.dtype(dtype)
            same(np.asarray(got).astype("complex128"), np.asarray(expected).astype("complex128"))
        same(jax.jit(hvd.allgather)(every[rank]), np.concatenate(every))


def trees(rank: int, n: int) -> None:
    tree = {"w": jnp.full((3, 2), rank + 1.0), "b": [jnp.arange(4), jnp.float32(rank)], "none": None}
    for f in both(lambda x: hvd.allreduce(x, hvd.Sum)):
        got = f(tree)
        same(got["w"], np.full((3, 2), n * (n + 1) / 2))
        same(got["b"][0], np.arange(4) * n)
        same(got["b"][1], n * (n - 1) / 2)
        assert got["none"] is None
    large = [jnp.full(30_000 + i, rank + i, jnp.float32) for i in range(20)]  # more than is done at once
    for f in both(lambda x: hvd.allreduce(x, hvd.Sum)):
        for i, x in enumerate(f(large)):
            same(x, np.full(30_000 + i, n * i + n * (n - 1) / 2))


def derivatives(rank: int, n: int) -> None:
    """Of the sum of all ranks' losses, which are sums with the weights 1 + rank."""
    weights = [np.arange(1.0, 2 * n * n + 1).reshape(2 * n, n) * (r + 1) for r in range(n)]
    x = jnp.ones((2 * n, n)) * (rank + 1)

    def gradient(f, weight):  # type: ignore[no-untyped-def]
        loss = lambda v: (f(v) * weight).sum()  # noqa: E731
        eager, traced = jax.grad(loss)(x), jax.jit(jax.grad(loss))(x)
        same(eager, traced)
        return traced

    w = weights[rank]
    same(gradient(lambda v: hvd.allreduce(v, hvd.Sum), w), sum(weights))
    same(gradient(lambda v: hvd.allreduce(v), w), sum(weights) / n)
    same(gradient(lambda v: hvd.broadcast(v, 0), w), sum(weights) if rank == 0 else 0 * w)
    same(gradient(hvd.alltoall, w), np.concatenate([m[2 * rank : 2 * rank + 2] for m in weights]))
    same(gradient(lambda v: hvd.reducescatter(v, hvd.Sum), w[:2]), np.concatenate([m[:2] for m in weights]))
    tall = [np.concatenate([m] * n) * np.arange(1, n * 2 * n + 1)[:, None] for m in weights]
    same(gradient(hvd.allgather, tall[rank]), sum(tall)[rank * 2 * n : (rank + 1) * 2 * n])
    if n > 1:
        following, before = (rank + 1) % n, (rank - 1) % n
        same(gradient(lambda v: hvd.sendrecv(v, following, before), w), weights[following])
    with pytest.raises(NotImplementedError, match="MAX"):
        jax.grad(lambda v: hvd.allreduce(v, "max").sum())(x)


def transformed(rank: int, n: int) -> None:
    x = jnp.asarray(values(rank, (5, 2 * n, 3), "float64"))
    every = [values(r, (5, 2 * n, 3), "float64") for r in range(n)]
    rows = slice(2 * rank, 2 * rank + 2)
    for axis in (0, 2):
        mapped = lambda f, axis=axis: jax.jit(jax.vmap(f, in_axes=axis, out_axes=axis))  # noqa: E731
        turned = lambda a, axis=axis: np.moveaxis(a, axis, 0)  # noqa: E731
        back = lambda a, axis=axis: np.moveaxis(a, 0, axis)  # noqa: E731
        same(mapped(lambda v: hvd.allreduce(v, hvd.Sum))(x), sum(every))
        if axis == 0:
            same(mapped(hvd.allgather)(x), back(np.concatenate([turned(e) for e in every], axis=1)))
            expected = sum(turned(e) for e in every)[:, rows]
            same(mapped(lambda v: hvd.reducescatter(v, hvd.Sum))(x), back(expected))
    twice = jax.vmap(jax.vmap(hvd.allgather, in_axes=1, out_axes=1))(x)
    same(twice, np.concatenate(every, axis=1))
    batch_gradient = jax.jit(jax.vmap(jax.grad(lambda v: hvd.allreduce(v, hvd.Sum).sum())))(x)
    same(batch_gradient, np.full(x.shape, n))

    def step(carry, v):  # type: ignore[no-untyped-def]
        total = hvd.allreduce(carry + v, hvd.Sum)
        return total, hvd.allreduce(total, "max")

    xs = jnp.ones((4, 3))
    carry, outs = jax.jit(lambda: jax.lax.scan(step, jnp.zeros(3), xs))()
    expected, value = [], 0.0
    for _ in range(4):
        value = (value + 1) * n
        expected.append([value] * 3)
    same(carry, expected[-1])
    same(outs, expected)
    slope = jax.jit(jax.grad(lambda v: jax.lax.scan(step_sum, v, xs)[0].sum()))(jnp.zeros(3))
    same(slope, np.full(3, float(n**4)))
    checkpointed = jax.jit(jax.grad(jax.checkpoint(lambda v: hvd.allreduce(jnp.sin(v), hvd.Sum).sum())))(xs)
    np.testing.assert_allclose(checkpointed, n * np.cos(xs))
    branch = jax.jit(lambda p, v: jax.lax.cond(p, lambda y: hvd.allreduce(y, hvd.Sum), lambda y: y, v))
    same(branch(True, xs), n * np.ones((4, 3)))
    same(branch(False, xs), np.ones((4, 3)))


def step_sum(carry, v):  # type: ignore[no-untyped-def]
    return hvd.allreduce(carry + v, hvd.Sum), 0.0


def order(rank: int, n: int) -> None:
    """Operations that depend on nothing in common run in the order of the program: else they would be mismatched."""

    @jax.jit
    def many(x):  # type: ignore[no-untyped-def]
        parts = [hvd.allreduce(x[: i + 1] * (i + 1), hvd.Sum) for i in range(40)]
        hvd.barrier()
        return parts, hvd.broadcast(x * 2, 0), hvd.allgather(x)

    x = jnp.ones(40) * (rank + 1)
    for _ in range(10):
        parts, root, gathered = many(x)
        for i, part in enumerate(parts):
            same(part, np.full(i + 1, (i + 1) * n * (n + 1) / 2))
        same(root, np.full(40, 2.0))
        assert gathered.shape == (40 * n,)
    after = jax.jit(lambda v: hvd.allreduce(v, hvd.Sum, after=(v * 2, {"x": v[0]})))
    same(after(x), np.full(40, n * (n + 1) / 2))


def messages(rank: int, n: int) -> None:
    if n == 1:
        return
    following, before = (rank + 1) % n, (rank - 1) % n
    for shape in ((3,), (50_000,)):
        every = [values(r, shape) for r in range(n)]
        for f in both(lambda x: hvd.sendrecv(x, following, before, tag=3)):
            same(f(every[rank]), every[before])

        def one_after_another(x):  # type: ignore[no-untyped-def]
            if rank == 0:
                hvd.send(x, following)
                return hvd.recv(x, before)
            got = hvd.recv(jax.ShapeDtypeStruct(x.shape, x.dtype), before)
            hvd.send(got, following)
            return got

        for f in both(one_after_another):
            same(f(jnp.asarray(every[rank])), every[0])


def groups(rank: int, n: int) -> None:
    turned = hvd.Group([*range(n)][::-1])
    for f in both(lambda x: hvd.allgather(x, group=turned)):
        same(f(jnp.full(1, rank)), np.arange(n)[::-1])


def mistakes(rank: int, n: int) -> None:
    x = jnp.ones(2 * n + 1)
    for text, error, f in (
        ("divide", ValueError, lambda: hvd.alltoall(x) if n > 1 else hvd.broadcast(x, 7)),
        ("root_rank 9", ValueError, lambda: hvd.broadcast(x, 9)),
        ("not another rank", ValueError, lambda: hvd.send(x, rank)),
        ("no reduction", ValueError, lambda: hvd.allreduce(x, "median")),
        ("not defined", ValueError, lambda: hvd.allreduce(x, "band")),
        ("dimension", ValueError, lambda: hvd.allgather(jnp.float32(1))),
        ("group", TypeError, lambda: hvd.allreduce(x, group=[0])),
        ("key_data", TypeError, lambda: hvd.broadcast({"key": jax.random.key(0)})),
    ):
        with pytest.raises(error, match=None if n == 1 else text):
            f()
    hvd.barrier()


def main() -> None:
    hvd.init()
    rank, n = hvd.rank(), hvd.size()
    for part in (operations, dtypes, trees, derivatives, transformed, order, messages, groups, mistakes):
        part(rank, n)
        print(part.__name__, flush=True)
    compiled = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum))
    same(compiled(jnp.ones(3)), np.full(3, n))
    hvd.shutdown()
    hvd.init()  # compiled functions go on in the next job
    same(compiled(jnp.ones(3)), np.full(3, n))


if __name__ == "__main__":
    main()
