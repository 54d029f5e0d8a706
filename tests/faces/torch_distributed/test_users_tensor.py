"""DTensor, tensor parallelism and device meshes on the back end, against whole tensors in one process."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)


def whole(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def redistribute_check(shape: tuple[int, ...]) -> None:
    """From every placement to every one; the sum of partial tensors is the whole."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tensor = whole(*shape)
    placements = [Replicate(), *(Shard(dim) for dim in range(len(shape)))]
    for source, target in itertools.product([*placements, Partial()], placements):
        if isinstance(source, Partial):
            mine = tensor * (dist.get_rank() + 1) / sum(range(1, dist.get_world_size() + 1))
            start = DTensor.from_local(mine, mesh, [source])
        else:
            start = distribute_tensor(tensor, mesh, [source])
        end = start.redistribute(mesh, [target])
        assert end.placements == (target,)
        torch.testing.assert_close(
            end.full_tensor(), tensor, msg=lambda m, s=source, t=target: f"{s} {t}: {m}"
        )
        if isinstance(target, Shard):
            parts = tensor.tensor_split(1, target.dim)[0].chunk(mesh.size(), target.dim)
            mine = parts[dist.get_rank()] if dist.get_rank() < len(parts) else None
            assert end.to_local().numel() == (0 if mine is None else mine.numel())


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("shape", [(6, 12), (7, 5), (2, 3, 4), (1, 1)], ids=str)
def test_redistribute(c10d: Any, shape: tuple[int, ...], size: int) -> None:
    c10d(redistribute_check, shape, size=size)


def redistribute_2d_check() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    tensor = whole(7, 6)
    placements = [Replicate(), Shard(0), Shard(1)]
    for source, target in itertools.product(itertools.product(placements, repeat=2), repeat=2):
        end = distribute_tensor(tensor, mesh, source).redistribute(mesh, target)
        assert torch.equal(end.full_tensor(), tensor), (source, target)


def test_redistribute_on_two_dimensions(c10d: Any) -> None:
    c10d(redistribute_2d_check, size=4)


def operators_check() -> None:
    """Operators choose their own collectives; the gradients come back in the placements of the inputs."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    a, b = whole(6, 5), whole(5, 7, seed=1)
    for left, right in itertools.product([Replicate(), Shard(0), Shard(1)], repeat=2):
        x = distribute_tensor(a, mesh, [left]).requires_grad_()
        y = distribute_tensor(b, mesh, [right]).requires_grad_()
        out = torch.softmax(x @ y, dim=1)
        plain_x, plain_y = a.clone().requires_grad_(), b.clone().requires_grad_()
        plain = torch.softmax(plain_x @ plain_y, dim=1)
        torch.testing.assert_close(out.full_tensor(), plain)
        (out * out).sum().backward()
        (plain * plain).sum().backward()
        torch.testing.assert_close(x.grad.full_tensor(), plain_x.grad)
        torch.testing.assert_close(y.grad.full_tensor(), plain_y.grad)


def test_operators_on_distributed_tensors(c10d: Any) -> None:
    c10d(operators_check, size=3)


class Block(torch.nn.Module):
    """Norm, two linear layers, and a head: (batch, sequence, 8) to (batch, sequence, 12)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.up = torch.nn.Linear(8, 12)
        self.down = torch.nn.Linear(12, 8)
        self.head = torch.nn.Linear(8, 12)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(whole(*parameter.shape, seed=number) / 3)

    def forward(self, inputs: Any) -> Any:
        return self.head(inputs + self.down(torch.relu(self.up(self.norm(inputs)))))


PLANS: dict[str, Any] = {
    "columns and rows": lambda: {
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Replicate()),
    },
    "sequence": lambda: {
        "": PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True
        ),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    },
}


def compare(block: Any, inputs: Any) -> None:
    """Output and gradients of a parallel block against those of a whole one."""
    plain = Block()
    ours, theirs = block(inputs), plain(inputs)
    torch.testing.assert_close(ours, theirs)
    ours.square().mean().backward()
    theirs.square().mean().backward()
    for (name, mine), reference in zip(block.named_parameters(), plain.parameters(), strict=True):
        grad = mine.grad.full_tensor() if isinstance(mine.grad, DTensor) else mine.grad
        torch.testing.assert_close(grad, reference.grad, msg=lambda m, n=name: f"{n}: {m}")


def tensor_parallel_check(name: str) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    compare(parallelize_module(Block(), mesh, PLANS[name]()), whole(2, 6, 8, seed=99))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", list(PLANS))
def test_tensor_parallel(c10d: Any, name: str, size: int) -> None:
    c10d(tensor_parallel_check, name, size=size)


def loss_parallel_check() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    head = torch.nn.Linear(8, 12)
    with torch.no_grad():
        head.weight.copy_(whole(12, 8))
        head.bias.zero_()
    weight = head.weight.detach().clone().requires_grad_()
    inputs, targets = whole(5, 8, seed=3), torch.arange(5)
    parallel = parallelize_module(
        head, mesh, ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    )
    with loss_parallel():
        loss = torch.nn.functional.cross_entropy(parallel(inputs), targets)
        loss.backward()
    plain = torch.nn.functional.cross_entropy(inputs @ weight.T, targets)
    plain.backward()
    torch.testing.assert_close(loss.full_tensor(), plain)
    torch.testing.assert_close(head.weight.grad.full_tensor(), weight.grad)


def test_loss_parallel(c10d: Any) -> None:
    c10d(loss_parallel_check)


def two_dimensional_check() -> None:
    """FSDP2 over the first dimension of the mesh, tensor parallelism over the second."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    block = parallelize_module(Block(), mesh["tensor"], PLANS["columns and rows"]())
    fully_shard(block, mesh=mesh["data"])
    inputs = [whole(2, 6, 8, seed=99 + row) for row in range(2)]
    plain = Block()
    ours = block(inputs[mesh["data"].get_local_rank()])
    ours.square().mean().backward()
    (sum(plain(x).square().mean() for x in inputs) / 2).backward()
    for mine, reference in zip(block.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.full_tensor(), reference.grad)


def test_tensor_parallel_under_fully_shard(c10d: Any) -> None:
    c10d(two_dimensional_check, size=4)


def mesh_check() -> None:
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    assert list(mesh.get_coordinate()) == [rank // 2, rank % 2]
    for name, members in (
        ("rows", [rank % 2, rank % 2 + 2]),
        ("columns", [rank // 2 * 2, rank // 2 * 2 + 1]),
    ):
        group = mesh.get_group(name)
        assert dist.get_process_group_ranks(group) == members
        total = torch.tensor([float(rank)])
        dist.all_reduce(total, group=group)
        assert total.item() == sum(members)
    flat = mesh._flatten("all")
    total = torch.tensor([float(rank)])
    dist.all_reduce(total, group=flat.get_group())
    assert total.item() == 6
    with pytest.raises(RuntimeError):
        init_device_mesh("cpu", (3, 2))


def test_device_mesh(c10d: Any) -> None:
    c10d(mesh_check, size=4)


def from_group_check() -> None:
    """A mesh made of groups that exist, and a seed that rank 0 spreads."""
    group = dist.new_group()
    mesh = dist.device_mesh.DeviceMesh.from_group(group, "cpu")
    assert torch.equal(distribute_tensor(whole(5, 4), mesh, [Shard(0)]).full_tensor(), whole(5, 4))
    torch.manual_seed(dist.get_rank())  # rank 0's data is what counts
    tensor = distribute_tensor(torch.randn(6), mesh, [Replicate()])
    torch.manual_seed(0)
    assert torch.equal(tensor.to_local(), torch.randn(6))


def test_a_mesh_of_existing_groups(c10d: Any) -> None:
    c10d(from_group_check, size=3)
