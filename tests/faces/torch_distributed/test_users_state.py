"""Sharded optimizers and distributed checkpoints on the back end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.algorithms import Join  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

from faces.torch_distributed.training import (  # noqa: E402
    assert_same_parameters,
    loss_of,
    model,
    train,
)


def adam(module: Any) -> Any:
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def zero_check(as_view: bool) -> None:
    """The optimizer state is divided among the ranks; consolidated, it is that of one process."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ddp = DDP(model())
    optimizer = ZeroRedundancyOptimizer(
        ddp.parameters(), torch.optim.AdamW, parameters_as_bucket_view=as_view, lr=0.01
    )
    train(ddp, optimizer, rank)
    alone = model()
    reference = adam(alone)
    for step in range(3):
        reference.zero_grad()
        (sum(loss_of(alone, r, step) for r in range(size)) / size).backward()
        reference.step()
    assert_same_parameters(ddp, alone)
    optimizer.consolidate_state_dict(to=size - 1)
    if rank == size - 1:
        ours, theirs = optimizer.state_dict()["state"], reference.state_dict()["state"]
        assert sorted(ours) == sorted(theirs)
        for number, state in theirs.items():
            for name, value in state.items():
                torch.testing.assert_close(ours[number][name], value, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("as_view", [False, True])
def test_zero_redundancy_optimizer(c10d: Any, as_view: bool) -> None:
    c10d(zero_check, as_view, size=3)


def zero_join_check() -> None:
    """Uneven inputs with DDP and the sharded optimizer in one Join, as on gloo beside."""
    made = []
    for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
        ddp = DDP(model(), process_group=group)
        optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, process_group=group, lr=0.1)
        with Join([ddp, optimizer]):
            train(ddp, optimizer, dist.get_rank(), steps=2 + dist.get_rank())
        made.append(ddp)
    assert_same_parameters(*made)


def test_zero_redundancy_optimizer_in_join(c10d: Any) -> None:
    c10d(zero_join_check, size=3)


def whole(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def checkpoint_check(folder: str, asynchronous: bool) -> None:
    """What is written in one placement can be read in another; objects and plain tensors too."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {
        "rows": distribute_tensor(whole(7, 4), mesh, [Shard(0)]),
        "columns": distribute_tensor(whole(5, 6), mesh, [Shard(1)]),
        "plain": whole(9),
        "step": 17,
    }
    if asynchronous:
        files = dist.new_group(backend="gloo")  # what async_save insists on for its own thread
        dcp.async_save(state, checkpoint_id=folder, process_group=files).result()
        dist.barrier()
    else:
        dcp.save(state, checkpoint_id=folder)
    loaded = {
        "rows": distribute_tensor(torch.zeros(7, 4), mesh, [Shard(1)]),
        "columns": distribute_tensor(torch.zeros(5, 6), mesh, [Replicate()]),
        "plain": torch.zeros(9),
        "step": 0,
    }
    dcp.load(loaded, checkpoint_id=folder)
    assert torch.equal(loaded["rows"].full_tensor(), whole(7, 4))
    assert torch.equal(loaded["columns"].full_tensor(), whole(5, 6))
    assert torch.equal(loaded["plain"], whole(9))
    assert loaded["step"] == 17


@pytest.mark.parametrize("asynchronous", [False, True])
def test_checkpoints(c10d: Any, tmp_path: Path, asynchronous: bool) -> None:
    c10d(checkpoint_check, str(tmp_path / "checkpoint"), asynchronous, size=3)


def own_group_async_check(folder: str) -> None:
    """async_save on a group of the back end under test, while training goes on in the default group."""
    rank = dist.get_rank()
    ddp = DDP(model())
    optimizer = adam(ddp)
    train(ddp, optimizer, rank, steps=1)
    kept = [parameter.detach().clone() for parameter in ddp.parameters()]
    saving = dcp.async_save(
        {"model": ddp.module.state_dict()}, checkpoint_id=folder, process_group=dist.new_group()
    )
    train(ddp, optimizer, rank, steps=10)
    saving.result()
    dist.barrier()
    loaded = {"model": model().state_dict()}
    dcp.load(loaded, checkpoint_id=folder)
    for ours, theirs in zip(loaded["model"].values(), kept, strict=True):
        assert torch.equal(ours, theirs)


def test_a_checkpoint_is_written_while_training_goes_on(c10d: Any, tmp_path: Path) -> None:
    c10d(own_group_async_check, str(tmp_path / "checkpoint"))


def failing_load_check(folder: str) -> str:
    """An error of one rank reaches all of them, by object collectives."""
    with pytest.raises(dcp.CheckpointException) as caught:
        dcp.load({"x": torch.zeros(2)}, checkpoint_id=folder)
    return str(caught.value)


def test_a_checkpoint_that_is_not_there(c10d: Any, tmp_path: Path) -> None:
    texts = c10d(failing_load_check, str(tmp_path / "nothing"), fresh=True)
    assert all("ranks:dict_keys([0, 1])" in text for text in texts), texts
