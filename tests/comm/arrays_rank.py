"""One rank of the array tests: every kind of array that collectives take. arrays_rank.py [CASE ...]; default: all.

The cases hold for any number of ranks.
"""

from __future__ import annotations

import array
import sys
from typing import Any

import numpy as np

import slipstream
from slipstream import AVG, MAX


def rank() -> int:
    return slipstream.rank()


def n() -> int:
    return slipstream.size()


def summed(x: Any) -> Any:
    """The sum over ranks of ``x * (rank + 1)``."""
    return x * (n() * (n() + 1) // 2)


def must_raise(kind: type[Exception], call: Any, *args: Any, **options: Any) -> None:
    try:
        call(*args, **options)
    except kind:
        return
    raise AssertionError(f"{call.__name__}{args} {options} raises no {kind.__name__}")


def case_not_contiguous() -> None:
    base = np.arange(240.0).reshape(8, 30)
    mine = base * (rank() + 1)
    views = {
        "strided": (mine[:, ::3], base[:, ::3]),
        "transposed": (mine.T, base.T),
        "backwards": (mine[::-1, ::-2], base[::-1, ::-2]),
        "Fortran": (np.asfortranarray(mine), base),
        "repeated": (np.broadcast_to(mine[0], (4, 30)), np.broadcast_to(base[0], (4, 30))),
        "three dimensions": (mine.reshape(2, 4, 30)[:, 1:3, 5:], base.reshape(2, 4, 30)[:, 1:3, 5:]),
    }
    for name, (view, expected) in views.items():
        got = slipstream.all_reduce(view)
        assert got.shape == view.shape, name
        assert np.array_equal(got, summed(expected)), name
        joined = slipstream.all_gather(view)
        assert np.array_equal(joined, np.concatenate([expected * (r + 1) for r in range(n())])), name
        work = slipstream.all_reduce(view, async_op=True)  # the copy must outlive this line
        assert np.array_equal(work.wait(), summed(expected)), name
    assert np.array_equal(mine, base * (rank() + 1)), "an input has been written to"


def case_buffers() -> None:
    values = array.array("d", [1.0, 2.0, 3.0])
    scaled = array.array("d", [v * (rank() + 1) for v in values])
    assert slipstream.all_reduce(scaled).tolist() == [summed(v) for v in values]
    assert slipstream.all_reduce(memoryview(scaled)[1:]).tolist() == [summed(v) for v in values[1:]]
    slipstream.all_reduce(scaled, out=scaled)
    assert scaled.tolist() == [summed(v) for v in values]
    text = bytearray(b"from rank 0" if rank() == 0 else b"-----------")
    slipstream.broadcast(text, out=text)
    assert text == b"from rank 0"
    grid = memoryview(bytearray(range(12))).cast("B", (3, 4))
    got = slipstream.all_reduce(grid, MAX)
    assert got.shape == (3, 4)
    assert got.dtype == np.uint8
    constant = slipstream.broadcast(b"read only", 0)  # may be read, not be written to
    assert constant.tobytes() == b"read only"
    must_raise(ValueError, slipstream.broadcast, b"read only", out=b"read only")
    assert slipstream.all_reduce([1, 2, 3]).tolist() == [n(), 2 * n(), 3 * n()]  # what NumPy makes of a list


class Exporter:
    """An object that speaks DLPack and nothing else."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self._values = values

    def __dlpack__(self, **options: Any) -> Any:
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._values.__dlpack_device__()


def case_dlpack() -> None:
    values = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    got = slipstream.all_reduce(Exporter(values * (rank() + 1)))
    assert got.shape == (3, 4)
    assert got.dtype == np.float32
    assert np.array_equal(got, summed(values))
    mine = values * (rank() + 1)
    work = slipstream.all_reduce(Exporter(mine), async_op=True)
    assert np.array_equal(work.wait(), summed(values))
    slipstream.all_reduce(Exporter(mine), out=Exporter(mine))
    assert np.array_equal(mine, summed(values))
    transposed = slipstream.all_reduce(Exporter((values * (rank() + 1)).T))
    assert np.array_equal(transposed, summed(values.T))


def case_tensors() -> None:
    try:
        import torch
    except ImportError:  # an extra, slow to load: only this case needs it
        print("no torch: its tensors are not tested")
        return
    for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8, torch.float16, torch.bool):
        tensor = (torch.arange(10).reshape(2, 5) % 2).to(dtype)
        got = slipstream.all_reduce(tensor, MAX)
        assert got.shape == (2, 5), dtype
        assert np.array_equal(got, tensor.numpy()), dtype
    tensor = torch.arange(6.0).reshape(2, 3) * (rank() + 1)
    slipstream.all_reduce(tensor.T)  # not contiguous: read through its strides
    assert np.array_equal(slipstream.all_reduce(tensor.T), summed(np.arange(6.0).reshape(2, 3).T))
    slipstream.all_reduce(tensor, out=tensor)  # in the tensor's own memory
    assert torch.equal(tensor, torch.arange(6.0).reshape(2, 3) * (n() * (n() + 1) // 2))
    must_raise(ValueError, slipstream.all_reduce, tensor.T, out=tensor.T)


def case_out() -> None:
    ones = np.ones((2, 3))
    out = np.zeros((2, 3))
    got = slipstream.all_reduce(ones, out=out)
    assert np.shares_memory(got, out)
    assert (out == n()).all()
    assert (ones == 1).all()
    part = np.zeros((4, 3))
    slipstream.all_reduce(ones, out=part[1:3])
    assert part[:, 0].tolist() == [0, n(), n(), 0]
    gathered = np.zeros((2 * n(), 3))
    assert np.shares_memory(slipstream.all_gather(ones, out=gathered), gathered)
    assert (gathered == 1).all()
    received = np.zeros((n(), 3))
    slipstream.all_to_all(np.full((n(), 3), float(rank())), out=received)
    assert received[:, 0].tolist() == list(range(n()))
    rows = np.zeros((1, 3))
    slipstream.reduce_scatter(np.ones((n(), 3)), out=rows)
    assert (rows == n()).all()
    kept = np.zeros((2, 3))
    result = slipstream.reduce(ones, 0, out=kept)
    assert (result is None) == (rank() != 0)
    assert (kept == (n() if rank() == 0 else 0)).all()
    for bad in (np.zeros((3, 2)), np.zeros(6), np.zeros((2, 3), np.float32), np.zeros((2, 6))[:, ::2]):
        must_raise(ValueError, slipstream.all_reduce, ones, out=bad)
    must_raise(ValueError, slipstream.all_reduce, ones, out=np.asfortranarray(np.zeros((2, 3))))
    must_raise(TypeError, slipstream.all_reduce, ones, out=object())


def case_scalars() -> None:
    for value in (2.5, np.float64(2.5), np.array(2.5), np.float32(2.5)):
        got = slipstream.all_reduce(value)
        assert got.shape == ()
        assert got.dtype == np.asarray(value).dtype
        assert float(got) == 2.5 * n()
    assert int(slipstream.all_reduce(rank(), MAX)) == n() - 1
    assert bool(slipstream.all_reduce(rank() == 0, slipstream.BOR))
    assert complex(slipstream.all_reduce(1 + 2j, AVG)) == 1 + 2j
    zero = np.array(float(rank()))
    slipstream.broadcast(zero, n() - 1, out=zero)
    assert zero == n() - 1
    assert zero.shape == ()
    assert slipstream.all_gather(np.array(rank())).tolist() == list(range(n()))


def case_empty() -> None:
    for shape in ((0,), (0, 5), (3, 0), (2, 0, 4)):
        nothing = np.zeros(shape, dtype=np.float32)
        for got in (
            slipstream.all_reduce(nothing),
            slipstream.broadcast(nothing),
            slipstream.all_reduce(nothing, out=nothing),
            slipstream.all_reduce(nothing, async_op=True).wait(),
        ):
            assert got.shape == shape
            assert got.dtype == np.float32
    assert slipstream.all_gather(np.zeros((0, 5))).shape == (0, 5)
    mine = np.full((rank(), 2), rank())  # rank 0 has no row
    assert slipstream.all_gather(mine)[:, 0].tolist() == [r for r in range(n()) for _ in range(r)]


def case_shapes() -> None:
    cube = np.arange(24.0).reshape(2, 3, 4)
    assert slipstream.all_gather(cube).shape == (2 * n(), 3, 4)
    assert np.array_equal(slipstream.all_gather(cube)[-2:], cube)
    rows = slipstream.reduce_scatter(np.ones((n() + 1, 2, 2)))
    assert rows.shape == (2 if rank() == 0 else 1, 2, 2)
    assert (rows == n()).all()
    gathered = slipstream.gather(cube, 0)
    assert gathered is None if rank() else gathered.shape == (2 * n(), 3, 4)
    if n() > 1:  # found out by all ranks, whoever differs
        must_raise(ValueError, slipstream.all_gather, np.ones((2, 3 + (rank() == 1))))
        must_raise(ValueError, slipstream.all_gather, np.ones(2, np.float32 if rank() == 1 else np.float64))
    assert (slipstream.all_reduce(cube) == n() * cube).all()


def case_blocks() -> None:
    x = np.arange(-500, 500, dtype=np.float32).reshape(10, 100) * (rank() + 1)
    mine = slipstream.quantize(x)
    assert mine.shape == (16,)
    total = slipstream.all_reduce(mine)
    assert total.dtype == slipstream.BLOCK_INT8
    got = slipstream.dequantize(total, out=np.empty_like(x))
    assert got.shape == x.shape
    assert np.abs(got - summed(x / (rank() + 1))).max() <= 0.51 * n() * 500 * n() * (n() + 1) / 2 / 127
    shared = slipstream.empty(16, slipstream.BLOCK_INT8)
    shared[...] = mine
    slipstream.all_reduce(shared, out=shared)
    assert shared.tobytes() == total.tobytes()
    assert slipstream.all_gather(mine[: rank() + 1]).shape == (n() * (n() + 1) // 2,)
    must_raise(ValueError, slipstream.all_reduce, mine, MAX)
    for other in ([("scale", ">f4"), ("values", "i1", 64)], [("scale", "f4"), ("values", "i1", 63)]):
        must_raise(TypeError, slipstream.all_reduce, np.zeros(3, dtype=other))


def case_memory() -> None:
    for shape, dtype in (((3, 4), np.float64), (5, np.int8), ((), np.float32), ((0, 3), np.int64)):
        memory = slipstream.empty(shape, dtype)
        assert memory.shape == (shape if isinstance(shape, tuple) else (shape,))
        assert memory.dtype == dtype
        memory[...] = 1
        assert (slipstream.all_reduce(memory) == n()).all()
        slipstream.all_reduce(memory, out=memory)
        assert (memory == n()).all()
    must_raise(ValueError, slipstream.empty, (-1, 2))
    must_raise(TypeError, slipstream.empty, (2, 3), object)


def case_torch_tensors_give_torch_tensors() -> None:
    """By every collective, in types that NumPy lacks too; ``out`` comes back as the object that was given."""
    try:
        import torch
    except ImportError:
        return
    for name in ("float32", "float64", "float16", "bfloat16", "float8_e5m2", "int64", "uint16", "bool"):
        kind = getattr(torch, name)
        x = torch.ones((n() * 2, 3)).to(kind)
        got = slipstream.all_reduce(x, MAX)
        assert type(got) is torch.Tensor, name
        assert got.dtype is kind, name
        assert got.shape == x.shape, name
        assert bool((got.float() == 1).all()), name
        assert slipstream.all_reduce(x, MAX, out=x) is x, name
        assert slipstream.all_reduce(x, MAX, out=x, async_op=True).wait() is x, name
        assert slipstream.all_gather(x).shape == (n() * n() * 2, 3), name
        assert slipstream.all_gather(x, async_op=True).wait().dtype is kind, name
        assert slipstream.reduce_scatter(x, MAX).shape == (2, 3), name
        assert slipstream.broadcast(x).dtype is kind, name
        assert slipstream.all_to_all(x).dtype is kind, name
        for found in (slipstream.reduce(x, op=MAX), slipstream.gather(x)):
            assert found is None if rank() else found.dtype is kind, name
        mine = torch.empty((2, 3), dtype=kind)
        assert slipstream.scatter(x, out=mine) is mine, name
        assert bool((mine.float() == 1).all()), name
        target = torch.zeros_like(x)
        sent = slipstream.send(x, (rank() + 1) % n(), async_op=True) if n() > 1 else None
        if sent is not None:
            assert slipstream.recv(target, (rank() - 1) % n()) is target, name
            sent.wait()
            assert bool((target.float() == 1).all()), name
    weights = torch.ones(4, requires_grad=True)
    total = slipstream.all_reduce(torch.nn.Parameter(weights) * 2)
    assert not total.requires_grad
    assert total.tolist() == [2.0 * n()] * 4
    transposed = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(slipstream.all_reduce(transposed), transposed * n())
    assert isinstance(slipstream.all_reduce(np.ones(3)), np.ndarray)
    into = np.empty(4, np.float32)
    assert slipstream.all_reduce(weights, out=into) is into
    must_raise(ValueError, slipstream.all_reduce, torch.ones(4).bfloat16(), out=torch.ones(4).half())
    must_raise(ValueError, slipstream.all_reduce, torch.ones(4).bfloat16(), out=torch.ones(4).short())
    must_raise(TypeError, slipstream.all_reduce, torch.ones(4, device="meta"))


def main() -> None:
    slipstream.init()
    cases = {name: case for name, case in globals().items() if name.startswith("case_")}
    for name in sys.argv[1:] or cases:
        cases[name]()
        slipstream.barrier()
        print(name, flush=True)
    slipstream.shutdown()


main()
