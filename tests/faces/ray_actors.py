"""Runs a local Ray with as many actors as the first argument says, and checks what they get; for test_ray.py."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import ray
from ray.util import collective
from ray.util.collective.types import ReduceOp

import slipstream.ray


@ray.remote(num_cpus=0)
class Actor:
    """A rank. It knows nothing of slipstream: Ray's set-up of workers has registered it."""

    def join(self, size: int, rank: int, name: str) -> None:
        """Makes the group, as Ray's documentation has it for a program that calls each actor."""
        collective.init_collective_group(size, rank, backend="slipstream", group_name=name)

    def all(self, name: str, make: Any) -> None:
        """Every operation, on arrays that ``make`` makes of NumPy's; asserts what comes."""
        collective.barrier(name)  # Ray makes a declared group at its first use
        rank, size = collective.get_rank(name), collective.get_collective_group_size(name)
        x = make(np.full(3, rank + 1.0))
        collective.allreduce(x, name, ReduceOp.PRODUCT)
        assert np.asarray(x).tolist() == [float(np.prod(np.arange(1, size + 1)))] * 3
        x = make(np.full((2, 2), rank))
        collective.reduce(x, size - 1, name)
        assert np.asarray(x)[0, 0] == (sum(range(size)) if rank == size - 1 else rank)
        x = make(np.full(5, rank, dtype=np.float32))
        collective.broadcast(x, 1, name)
        assert (np.asarray(x) == 1).all()
        found = [make(np.zeros(2)) for _ in range(size)]
        collective.allgather(found, make(np.array([rank, -1.0])), name)
        assert [np.asarray(one).tolist() for one in found] == [[r, -1.0] for r in range(size)]
        mine = make(np.zeros(2))
        collective.reducescatter(
            mine, [make(np.full(2, 10.0 * r + rank)) for r in range(size)], name, ReduceOp.MAX
        )
        assert np.asarray(mine).tolist() == [10.0 * rank + size - 1] * 2
        if rank == 0:
            collective.send(make(np.arange(4)), 1, name)
        elif rank == 1:
            x = make(np.zeros(4, dtype=np.int64))
            collective.recv(x, 0, name)
            assert np.asarray(x).tolist() == [0, 1, 2, 3]

    def sum_or_error(self, name: str) -> str:
        """What an all-reduce raises."""
        try:
            collective.allreduce(np.ones(4), name)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    def leave(self, name: str) -> None:
        """Ends the group on this rank."""
        collective.destroy_collective_group(name)

    def die(self) -> None:
        """Ends the process."""
        os._exit(1)


def as_array(array: Any) -> Any:
    """NumPy's."""
    return array


def as_tensor(array: Any) -> Any:
    """PyTorch's."""
    import torch

    return torch.from_numpy(array)


def main(size: int, tensors: bool) -> None:
    """``tensors``: of PyTorch, too."""
    slipstream.ray.register()
    slipstream.ray.register()  # does nothing
    actors = [Actor.remote() for _ in range(size)]
    collective.create_collective_group(
        actors, size, list(range(size)), backend="slipstream", group_name="one"
    )
    ray.get([actor.all.remote("one", as_array) for actor in actors])
    for _ in range(2):  # a name may come again; two groups at a time
        ray.get([actor.join.remote(size, rank, "two") for rank, actor in enumerate(reversed(actors))])
        ray.get([actor.all.remote("two", as_tensor if tensors else as_array) for actor in actors])
        ray.get([actor.leave.remote("two") for actor in actors])
    last = actors[-1].die.remote()
    for text in ray.get([actor.sum_or_error.remote("one") for actor in actors[:-1]]):
        assert text.startswith("PeerLost: "), text
        assert f"rank {size - 1}" in text, text
    try:
        ray.get(last)
    except ray.exceptions.RayActorError:
        print("all is well")


if __name__ == "__main__":
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        runtime_env={"worker_process_setup_hook": slipstream.ray.register},
    )
    main(int(sys.argv[1]), tensors=sys.argv[2:] == ["torch"])
