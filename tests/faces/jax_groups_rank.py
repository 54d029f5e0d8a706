"""A program of JAX whose computations need groups of processes of all kinds; each process prints what it is told.

slipstream run -np 4 -- python tests/faces/jax_groups_rank.py KIND

KIND: subsets, numbered, orders, alone, meshes, branches, threads, guarded, killed or absent.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from jax._src import distributed
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

LIMIT_MS = 120_000


def results(shape: tuple[int, ...], order: Sequence[int], act: Callable[[jax.Array], jax.Array]) -> float:
    """What ``act`` gives this process on a mesh with these processes in this order; process p has 10^p."""
    devices = [jax.devices()[one] for one in order]
    axes = ("i", "j")[: len(shape)]
    mesh = Mesh(np.array(devices).reshape(shape), axes)
    whole = np.array([10.0**one for one in order], np.float32).reshape(shape)
    x = jax.make_array_from_callback(shape, NamedSharding(mesh, P(*axes)), lambda index: whole[index])
    mapped = jax.shard_map(act, mesh=mesh, in_specs=P(*axes), out_specs=P(*axes), check_vma=False)
    return float(np.asarray(jax.jit(mapped)(x).addressable_data(0)).ravel()[0])


def total(order: Sequence[int], shape: tuple[int, ...] = (), axis: str | tuple[str, ...] = "i") -> float:
    """The sum along an axis."""
    return results(shape or (len(order),), order, lambda x: jax.lax.psum(x, axis))


def check(found: float, members: Sequence[int]) -> None:
    """It is the sum of what these processes have."""
    assert found == sum(10.0**one for one in members), (found, members)


def subsets(me: int, n: int) -> None:
    """Each set of processes sums; the others have nothing to do with it."""
    for size in range(2, n + 1):
        for members in itertools.combinations(range(n), size):
            if me in members:
                check(total(members), members)


def orders(me: int, n: int) -> None:
    """Each order of all processes sums, and each of two of them."""
    for order in (*itertools.permutations(range(n)), *itertools.permutations(range(n), 2)):
        if me in order:
            check(total(order), order)


def alone(me: int, n: int) -> None:
    """Sums along an axis of one process, on some of the processes."""
    if me < 2:
        check(total((0, 1), (2, 1), "j"), (me,))
        check(total((0, 1), (2, 1), ("i", "j")), (0, 1))
    if me == n - 1:
        check(total((me,)), (me,))


def meshes(me: int, n: int) -> None:
    """Two meshes in turns, each of which has a group of the other, along each axis and both."""
    for order in ((0, 1, 2, 3), (0, 1, 3, 2), (1, 0, 2, 3), (0, 2, 1, 3)) * 2:
        at = order.index(me)
        rows, columns = order[at // 2 * 2 : at // 2 * 2 + 2], order[at % 2 :: 2]
        check(total(order, (2, 2), ("i", "j")), order)
        check(total(order, (2, 2), "j"), rows)
        check(total(order, (2, 2), "i"), columns)


def branches(me: int, n: int) -> None:
    """Half of the processes take a way with a sum of their own, and all go on with a sum of all."""

    def act(x: jax.Array) -> jax.Array:
        mine = jax.lax.cond(jax.lax.axis_index("i") == 0, lambda v: jax.lax.psum(v, "j"), lambda v: v, x)
        return jax.lax.psum(mine, ("i", "j"))

    assert results((2, 2), range(4), act) == 11 + 11 + 100 + 1000


def threads(me: int, n: int) -> None:
    """Process 0 computes with process 1 in one thread, and with process 2 in another."""
    failed: list[BaseException] = []

    def act(members: tuple[int, int]) -> None:
        try:
            check(total(members), members)
        except BaseException as error:
            failed.append(error)

    running = [threading.Thread(target=act, args=(pair,)) for pair in ((0, 1), (0, 2)) if me in pair]
    for one in running:
        one.start()
    for one in running:
        one.join()
    assert not failed, failed


def guarded(me: int, n: int) -> None:
    """JAX refuses the first computation of a group, as it is in another thread than it may be."""
    with jax.thread_guard(True), ThreadPoolExecutor(1) as executor:
        refused = executor.submit(total, range(n)).exception()
    assert "the thread guard was set" in str(refused), refused
    check(total(range(n)), range(n))


def killed(me: int, n: int) -> None:
    """Process 1 dies when the others make a group with it."""
    check(total((0, 2)), (0, 2)) if me != 1 else os.kill(os.getpid(), signal.SIGKILL)
    results((n,), range(n), lambda x: jax.lax.all_to_all(jax.lax.all_gather(x, "i"), "i", 0, 0))


def absent(me: int, n: int) -> None:
    """Process 1 lives, and does not come."""
    client = distributed.global_state.client
    if me != 0:
        client.blocking_key_value_get("told", LIMIT_MS)
        return
    try:
        results((2,), (0, 1), lambda x: jax.lax.all_to_all(jax.lax.all_gather(x, "i"), "i", 0, 0))
    finally:
        client.key_value_set("told", "yes")


def main() -> None:
    """Does what the command line says."""
    numbers = {}
    if sys.argv[1] == "numbered":  # JAX's numbers are other ones than the ranks
        size = int(os.environ["SLIPSTREAM_SIZE"])
        numbers = {
            "coordinator_address": os.environ["SLIPSTREAM_JAX_COORDINATOR"],
            "num_processes": size,
            "process_id": (int(os.environ["SLIPSTREAM_RANK"]) + 1) % size,
        }
        sys.argv[1] = "subsets"
    jax.distributed.initialize(shutdown_timeout_seconds=60, **numbers)
    acts = (subsets, orders, alone, meshes, branches, threads, guarded, killed, absent)
    act = next(one for one in acts if one.__name__ == sys.argv[1])
    jax.devices()
    try:
        act(jax.process_index(), jax.process_count())
        print("told: all is right", flush=True)
    except jax.errors.JaxRuntimeError as error:
        print(f"told: {error}".replace("\n", " "), flush=True)
    if act is killed:
        leave()


def leave() -> None:
    """Ends processes 0 and 2 without JAX, which would wait for process 1.

    Process 0 waits for the other one: it serves JAX's processes, and they end at once when it does.
    """
    client = distributed.global_state.client
    if jax.process_index() == 0:
        client.blocking_key_value_get("told", LIMIT_MS)
    else:
        client.key_value_set("told", "yes")
    os._exit(0)


if __name__ == "__main__":
    main()
