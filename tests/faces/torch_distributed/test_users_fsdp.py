"""FSDP1 and FSDP2 on the back end, against one process that sees the data of all ranks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint.state_dict as state_dicts  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import (  # noqa: E402
    CPUOffloadPolicy,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy  # noqa: E402

from faces.torch_distributed.training import (  # noqa: E402
    STEPS,
    assert_same_parameters,
    batch,
    model,
    train,
    trained_alone,
)

CPU = torch.device("cpu")


def adam(module: Any) -> Any:
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def float_loss(module: Any, rank: int, step: int) -> Any:
    """The loss in float32 whatever the module computes in."""
    inputs, targets = batch(rank, step)
    return torch.nn.functional.mse_loss(module(inputs).float(), targets)


def sharded(mesh: Any, **options: Any) -> Any:
    """FSDP2 on every linear layer and on the whole."""
    made = model()
    for layer in made:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(made, mesh=mesh, **options)


def whole(module: Any) -> Any:
    """An unsharded model with the parameters of a sharded one."""
    plain = model()
    options = state_dicts.StateDictOptions(full_state_dict=True)
    plain.load_state_dict(state_dicts.get_model_state_dict(module, options=options))
    return plain


def mesh_of(hybrid: bool) -> Any:
    size = dist.get_world_size()
    if hybrid:
        return init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh("cpu", (size,))


POLICIES: dict[str, tuple[dict[str, Any], float]] = {
    "default": ({}, 1e-5),
    "kept after forward": ({"reshard_after_forward": False}, 1e-5),
    "bf16": (
        {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)},
        4e-2,
    ),
    "bf16 reduced in bf16": ({"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}, 4e-2),
    "offloaded": ({"offload_policy": CPUOffloadPolicy(pin_memory=False)}, 1e-5),
}


def fsdp2_check(name: str, hybrid: bool) -> None:
    options, tolerance = POLICIES[name]
    module = sharded(mesh_of(hybrid), **options)
    train(module, adam(module), dist.get_rank(), loss=float_loss)
    assert_same_parameters(whole(module), trained_alone(dist.get_world_size(), make=adam), tolerance)


@pytest.mark.parametrize("name", list(POLICIES))
@pytest.mark.parametrize("size", [2, 3])
def test_fully_shard(c10d: Any, name: str, size: int) -> None:
    c10d(fsdp2_check, name, False, size=size)


@pytest.mark.parametrize("name", ["default", "bf16"])
def test_fully_shard_on_a_mesh_of_two_dimensions(c10d: Any, name: str) -> None:
    c10d(fsdp2_check, name, True, size=4)


def partial_reshard_check() -> None:
    """Parameters go back to smaller groups than the world between forward and backward."""
    module = sharded(mesh_of(False), reshard_after_forward=2)
    train(module, adam(module), dist.get_rank())
    assert_same_parameters(whole(module), trained_alone(dist.get_world_size(), make=adam))


def test_fully_shard_that_reshards_to_pairs(c10d: Any) -> None:
    c10d(partial_reshard_check, size=4)


def accumulate_check() -> None:
    """Two batches before a step: the first without gradient reduction."""
    rank, size = dist.get_rank(), dist.get_world_size()
    module = sharded(mesh_of(False))
    module.set_requires_gradient_sync(False)
    float_loss(module, rank, 0).backward()
    module.set_requires_gradient_sync(True)
    float_loss(module, rank, 1).backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), 0.01)
    alone = model()
    (sum(float_loss(alone, r, step) for r in range(size) for step in (0, 1)) / size).backward()
    torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.01)
    for ours, theirs in zip(module.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)


def test_fully_shard_accumulates_and_clips(c10d: Any) -> None:
    c10d(accumulate_check, size=3)


def fsdp2_state_check() -> None:
    """A full state dict of rank 0 restores model and optimizer; training goes on as if nothing had been."""
    rank = dist.get_rank()
    module = sharded(mesh_of(False))
    optimizer = adam(module)
    train(module, optimizer, rank)
    full = state_dicts.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    saved = copy.deepcopy(state_dicts.get_state_dict(module, optimizer, options=full))
    again = sharded(mesh_of(False))
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    second = adam(again)
    state_dicts.set_state_dict(
        again, second, model_state_dict=saved[0], optim_state_dict=saved[1], options=full
    )
    train(module, optimizer, rank)
    train(again, second, rank)
    assert_same_parameters(whole(again), whole(module), 0.0)


def test_fully_shard_state_round_trip(c10d: Any) -> None:
    c10d(fsdp2_state_check, size=3)


def wire_check(gathers: bool) -> None:
    """int8 rounds the reduced gradients; the gathered weights only where that is asked for."""
    rank, size, width = dist.get_rank(), dist.get_world_size(), 384
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(width, width, generator=generator)
    inputs = torch.randn(size, 8, width, generator=generator)
    layer = torch.nn.Linear(width, width, bias=False)
    with torch.no_grad():
        layer.weight.copy_(weight)
    fully_shard(layer, mesh=mesh_of(False))
    shard = layer.weight.to_local().detach().clone()
    assert torch.equal(shard, weight.chunk(size)[rank])
    layer.unshard()
    gathered = layer.weight.detach().clone()
    off = float((gathered - weight).abs().max())
    assert 0 < off <= float(weight.abs().max()) / 127 if gathers else off == 0
    layer.reshard()
    layer(inputs[rank]).sum().backward()
    alone = inputs.sum(1, dtype=torch.float64).mean(0).expand(width, width).chunk(size)[rank]
    off = float((layer.weight.grad.to_local() - alone).abs().max())
    assert 0 < off <= float(inputs.sum(1).abs().max()) * 2 / 127
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, gathered.numpy().tobytes())
    assert len(set(everyone)) == 1


@pytest.mark.parametrize("gathers", [False, True])
def test_fully_shard_by_a_wire(c10d: Any, gathers: bool) -> None:
    environment = {"SLIPSTREAM_WIRE": "int8", "SLIPSTREAM_WIRE_GATHER": str(int(gathers))}
    c10d(wire_check, gathers, size=2, hosts=True, environment=environment)


FSDP1: dict[str, tuple[dict[str, Any], float]] = {
    "full": ({"sharding_strategy": ShardingStrategy.FULL_SHARD}, 1e-5),
    "grad op": ({"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}, 1e-5),
    "no shard": ({"sharding_strategy": ShardingStrategy.NO_SHARD}, 1e-5),
    "bf16": ({"mixed_precision": MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16)}, 4e-2),
    "orig params": ({"use_orig_params": True}, 1e-5),
    "not limited": ({"limit_all_gathers": False, "forward_prefetch": True}, 1e-5),
}


def whole1(module: Any) -> Any:
    plain = model()
    with FullyShardedDataParallel.state_dict_type(
        module, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=False, rank0_only=False)
    ):
        plain.load_state_dict(module.state_dict())
    return plain


def wrapped(**options: Any) -> Any:
    policy = ModuleWrapPolicy({torch.nn.Linear})
    return FullyShardedDataParallel(model(), auto_wrap_policy=policy, device_id=CPU, **options)


def fsdp1_check(name: str) -> None:
    options, tolerance = FSDP1[name]
    module = wrapped(**options)
    train(module, adam(module), dist.get_rank(), loss=float_loss)
    assert_same_parameters(whole1(module), trained_alone(dist.get_world_size(), make=adam), tolerance)


@pytest.mark.parametrize("name", list(FSDP1))
def test_fsdp1(c10d: Any, name: str) -> None:
    c10d(fsdp1_check, name, size=3)


def fsdp1_hybrid_check(strategy: str) -> None:
    module = wrapped(sharding_strategy=ShardingStrategy[strategy], device_mesh=mesh_of(True))
    train(module, adam(module), dist.get_rank())
    assert_same_parameters(whole1(module), trained_alone(dist.get_world_size(), make=adam))


@pytest.mark.parametrize("strategy", ["HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"])
def test_fsdp1_on_a_mesh_of_two_dimensions(c10d: Any, strategy: str) -> None:
    c10d(fsdp1_hybrid_check, strategy, size=4)


def fsdp1_state_check(folder: str) -> None:
    """A sharded state dict through a distributed checkpoint."""
    rank = dist.get_rank()
    module = wrapped(use_orig_params=True)
    optimizer = adam(module)
    train(module, optimizer, rank, steps=STEPS)
    kept = whole1(module)
    dist.barrier()
    with FullyShardedDataParallel.state_dict_type(
        module, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=False)
    ):
        state = {"model": module.state_dict()}
        dist.checkpoint.save(state, checkpoint_id=folder)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
        state = {"model": module.state_dict()}
        dist.checkpoint.load(state, checkpoint_id=folder)
        module.load_state_dict(state["model"])
    assert_same_parameters(whole1(module), kept, 0.0)


def test_fsdp1_sharded_state(c10d: Any, tmp_path: Path) -> None:
    c10d(fsdp1_state_check, str(tmp_path / "checkpoint"), size=2)
