"""A program of JAX with several CPU devices in its processes: all collectives, compared with NumPy.

slipstream run -np 2 -e JAX_NUM_CPU_DEVICES=2 -- python tests/faces/jax_devices_rank.py types|meshes|ways|counts
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Array = np.ndarray[Any, Any]
Axes = str | tuple[str, ...]

FLOATS = ("float32", "float64", "bfloat16", "float16")
OTHERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "complex64", "complex128")


def contribution(device: int, size: int, dtype: str) -> Array:
    """What a device has: small whole numbers, whose sums every type holds exactly."""
    numbers = np.random.default_rng(device).integers(0, 4, size)
    return np.asarray(jnp.asarray(numbers).astype(dtype))


def check(name: str, got: jax.Array, wanted: Array) -> None:
    """The parts of the result that this process's devices have equal those of ``wanted``."""
    assert got.shape == wanted.shape, (name, got.shape, wanted.shape)
    for shard in got.addressable_shards:
        np.testing.assert_array_equal(
            np.asarray(shard.data), wanted[shard.index].astype(got.dtype), err_msg=f"{name} on {shard.device}"
        )


def placed(mesh: Mesh, rows: Sequence[Array]) -> jax.Array:
    """An array of which the device at each place of the mesh has one of these."""
    whole = np.concatenate(rows)
    place = NamedSharding(mesh, P(mesh.axis_names))
    return jax.make_array_from_callback(whole.shape, place, lambda index: whole[index])


def permutations(n: int) -> dict[str, list[tuple[int, int]]]:
    """A ring, another one, a single pair, and pairs that leave devices out."""
    return {
        "ring": [(one, (one + 1) % n) for one in range(n)],
        "other ring": [(one, (one - 3) % n) for one in range(n)] if n > 3 else [(n - 1, 0)],
        "pair": [(0, n - 1)],
        "itself": [(0, 0), *[(one, one - 1) for one in range(2, n)]],
    }


def acts(axis: Axes, n: int, ordered: bool) -> dict[str, Callable[[Any], Any]]:
    """All collectives along an axis of ``n`` devices. ``ordered``: of numbers that have an order."""
    found: dict[str, Callable[[Any], Any]] = {
        "psum": lambda x: jax.lax.psum(x, axis),
        "all_gather": lambda x: jax.lax.all_gather(x, axis, tiled=True),
        "psum_scatter": lambda x: jax.lax.psum_scatter(x, axis, tiled=True),
        "all_to_all": lambda x: jax.lax.all_to_all(x, axis, 0, 0, tiled=True),
    }
    for name, pairs in permutations(n).items():
        found[f"ppermute, {name}"] = lambda x, pairs=pairs: jax.lax.ppermute(x, axis, pairs)
    if ordered:
        found["pmax"] = lambda x: jax.lax.pmax(x, axis)
        found["pmin"] = lambda x: jax.lax.pmin(x, axis)
    return found


def expected(name: str, rows: list[Array], at: int) -> Array:
    """What the member at this place of a group gets, whose members have ``rows``."""
    n = len(rows)
    total = functools.reduce(np.add, rows)
    size = len(total) // n
    if name == "psum":
        return total
    if name == "all_gather":
        return np.concatenate(rows)
    if name == "psum_scatter":
        return total[at * size : (at + 1) * size]
    if name == "all_to_all":
        return np.concatenate([row[at * size : (at + 1) * size] for row in rows])
    if name == "pmax":
        return np.max(rows, axis=0)
    if name == "pmin":
        return np.min(rows, axis=0)
    source = {to: of for of, to in permutations(n)[name.removeprefix("ppermute, ")]}
    return rows[source[at]] if at in source else np.zeros_like(total)


def members(mesh: Mesh, axis: Axes, place: int) -> tuple[list[int], int]:
    """The places of the mesh in the group of this one along the axis, in its order, and which of them it is."""
    shape, names = mesh.devices.shape, mesh.axis_names
    mine = np.unravel_index(place, shape)
    along = [names.index(one) for one in ((axis,) if isinstance(axis, str) else axis)]
    group = []
    for moved in itertools.product(*(range(shape[one]) for one in along)):
        other = list(mine)
        for one, value in zip(along, moved, strict=True):
            other[one] = value
        group.append(int(np.ravel_multi_index(other, shape)))
    return group, group.index(place)


def along(mesh: Mesh, axis: Axes, dtype: str, size: int) -> None:
    """All collectives along an axis, in one computation."""
    n = len(members(mesh, axis, 0)[0])
    rows = [contribution(device, size * n, dtype) for device in range(mesh.size)]
    every = acts(axis, n, ordered=not dtype.startswith("complex"))

    def run(x: jax.Array) -> list[jax.Array]:
        return [act(x) for act in every.values()]

    where = P(mesh.axis_names)
    mapped = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=where, out_specs=where, check_vma=False))
    in_mesh = axis if isinstance(axis, str) else tuple(one for one in mesh.axis_names if one in axis)
    for name, got in zip(every, mapped(placed(mesh, rows)), strict=True):
        wanted = []
        for place in range(mesh.size):
            # JAX numbers the devices of a ppermute by the mesh's order of the axes.
            group, at = members(mesh, in_mesh if name.startswith("ppermute") else axis, place)
            wanted.append(expected(name, [rows[one] for one in group], at))
        check(f"{name} along {axis} of {mesh}, {dtype} {size}", got, np.concatenate(wanted))


def has_unlike_counts() -> bool:
    """Whether the processes have unlike numbers of devices."""
    return len({len(jax.local_devices(process_index=one)) for one in range(jax.process_count())}) > 1


def types() -> None:
    """All types, over all devices."""
    mesh = Mesh(np.array(jax.devices()), ("i",))
    for dtype in (*FLOATS, *OTHERS):
        for size in (1, 7, 1023):
            along(mesh, "i", dtype, size)
    along(mesh, "i", "float32", 1 << 16)


def meshes() -> None:
    """Two and three axes: groups within a process, and of one, of several and of unlike numbers of its devices."""
    devices = jax.devices()
    n = len(devices)
    orders = [list(range(n)), [*range(0, n, 2), *range(1, n, 2)], [*range(1, n), 0], list(range(n))[::-1]]
    shapes = [(one, n // one) for one in sorted({2, 3, n // 3, n // 2, n} - {1}) if n % one == 0]
    for order in orders:
        arranged = np.array(devices)[order]
        for shape in shapes:
            mesh = Mesh(arranged.reshape(shape), ("x", "y"))
            for axis in ("x", "y", ("x", "y"), ("y", "x")):
                along(mesh, axis, "float32", 5)
        if n == 8:
            cube = Mesh(arranged.reshape(2, 2, 2), ("x", "y", "z"))
            for axis in ("x", "y", "z", ("x", "y"), ("y", "z"), ("x", "z"), ("z", "y", "x")):
                along(cube, axis, "float32", 5)
    some = Mesh(np.array(devices[:-1]), ("i",))  # without one device of the last process
    along(some, "i", "float32", 3)


def ways() -> None:
    """`jit` over sharded arrays, `pmap`, loops, and multihost_utils."""
    devices = jax.devices()
    n, me = len(devices), jax.process_index()
    mesh = Mesh(np.array(devices), ("i",))
    rows = [np.arange(6.0) + 10 * device for device in range(n)]
    x = placed(mesh, rows)
    everywhere = NamedSharding(mesh, P())
    check("jit of a sum", jax.jit(jnp.sum)(x), np.array(np.sum(rows)))
    check("jit that gathers", jax.jit(lambda x: 2 * x, out_shardings=everywhere)(x), 2 * np.concatenate(rows))
    check("any", jax.jit(jnp.any)(x > 10 * n - 5.5), np.array(True))
    square = np.arange(4.0 * n * n).reshape(2 * n, 2 * n)
    tall, wide = NamedSharding(mesh, P("i", None)), NamedSharding(mesh, P(None, "i"))
    y = jax.make_array_from_callback(square.shape, tall, lambda index: square[index])
    check("jit that turns", jax.jit(lambda y: y + 1, out_shardings=wide)(y), square + 1)
    z = jax.make_array_from_callback(square.shape, wide, lambda index: square[index])
    check("a product", jax.jit(lambda z, y: z @ y, out_shardings=everywhere)(z, y), square @ square)
    check("a product in parts", jax.jit(lambda z, y: z @ y, out_shardings=tall)(z, y), square @ square)

    def step(_: int, v: jax.Array) -> jax.Array:
        return jax.lax.ppermute(v, "i", [(one, (one + 1) % n) for one in range(n)]) + jax.lax.pmax(v, "i")

    looped = jax.shard_map(
        lambda v: jax.lax.fori_loop(0, 20, step, v), mesh=mesh, in_specs=P("i"), out_specs=P("i")
    )
    wanted = np.stack(rows)
    for _ in range(20):
        wanted = np.roll(wanted, 1, axis=0) + wanted.max(axis=0)
    check("a loop", jax.jit(looped)(x), wanted.ravel())
    here = [rows[one] for one, device in enumerate(devices) if device.process_index == me]
    if not has_unlike_counts():  # pmap and multihost_utils want as many devices in all processes
        summed = jax.pmap(lambda v: jax.lax.psum(v, "i"), axis_name="i")(np.stack(here))
        for shard in summed.addressable_shards:
            np.testing.assert_array_equal(
                np.asarray(shard.data).ravel(), np.sum(rows, axis=0), err_msg="pmap"
            )
        told = multihost_utils.broadcast_one_to_all(np.full(3, me))
        np.testing.assert_array_equal(told, np.zeros(3))
        gathered = multihost_utils.process_allgather(x, tiled=True)
        np.testing.assert_array_equal(np.asarray(gathered), np.concatenate(rows))
        multihost_utils.sync_global_devices("end")


def counts() -> None:
    """The same where processes have unlike numbers of devices."""
    assert has_unlike_counts()
    meshes()
    ways()


def main() -> None:
    """Does what the command line says."""
    if sys.argv[1] == "counts":
        jax.config.update("jax_num_cpu_devices", 1 + 2 * int(os.environ["SLIPSTREAM_RANK"]))
    jax.distributed.initialize()
    jax.config.update("jax_enable_x64", True)
    assert len(jax.devices()) > jax.process_count()
    next(one for one in (types, meshes, ways, counts) if one.__name__ == sys.argv[1])()
    print(f"{len(jax.local_devices())} of {len(jax.devices())} devices: all is right", flush=True)


if __name__ == "__main__":
    main()
