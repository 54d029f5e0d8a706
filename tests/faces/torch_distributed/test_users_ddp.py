"""DistributedDataParallel on the back end, against one process that sees the data of all ranks."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.algorithms import Join  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import (  # noqa: E402
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

from faces.torch_distributed.training import (  # noqa: E402
    STEPS,
    assert_same_parameters,
    batch,
    loss_of,
    model,
    train,
    trained_alone,
)

TINY = 200 / 2**20  # MiB: less than a layer, so that every parameter is a bucket


def sgd(module: Any) -> Any:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def options_check(options: dict[str, Any]) -> None:
    ddp = DDP(model(), **options)
    train(ddp, sgd(ddp), dist.get_rank())
    assert_same_parameters(ddp, trained_alone(dist.get_world_size()))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": TINY},
        {"static_graph": True, "bucket_cap_mb": TINY},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": TINY},
        {"gradient_as_bucket_view": True, "static_graph": True},
        {"broadcast_buffers": False, "init_sync": False},
        {"bucket_cap_mb": 100, "skip_all_reduce_unused_params": True, "find_unused_parameters": True},
    ],
    ids=lambda options: "+".join(options) or "default",
)
def test_options(c10d: Any, options: dict[str, Any], size: int) -> None:
    c10d(options_check, options, size=size)


def test_over_tcp(c10d: Any) -> None:
    environment = {"SLIPSTREAM_TRANSPORT": "tcp"}
    c10d(options_check, {"bucket_cap_mb": TINY}, size=4, environment=environment, store="tcp")


class Branches(torch.nn.Module):
    """Uses one branch on even ranks and another on odd ones, and never the third."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = torch.nn.ModuleList(model() for _ in range(3))

    def forward(self, inputs: Any, rank: int) -> Any:
        return self.branches[rank % 2](inputs)


def branch_loss(module: Any, rank: int, step: int) -> Any:
    inputs, targets = batch(rank, step)
    return torch.nn.functional.mse_loss(module(inputs, rank), targets)


def unused_check() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    ddp = DDP(Branches(), find_unused_parameters=True, bucket_cap_mb=TINY)
    train(ddp, sgd(ddp), rank, loss=branch_loss)
    alone = Branches()
    optimizer = sgd(alone)
    for step in range(STEPS):
        optimizer.zero_grad()
        (sum(branch_loss(alone, r, step) for r in range(size)) / size).backward()
        optimizer.step()
    assert_same_parameters(ddp, alone)
    assert ddp.module.branches[2][0].weight.grad is None


def test_branches_that_some_ranks_do_not_use(c10d: Any) -> None:
    c10d(unused_check, size=3)


def bf16_hook(group, bucket):  # DDP checks annotations, and they must not be strings
    """What bf16_compress_hook does, which PyTorch refuses where there is no CUDA."""
    narrow = bucket.buffer().to(torch.bfloat16).div_(group.size())
    future = dist.all_reduce(narrow, group=group, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))


def chained_hook(group, bucket):
    """Waits for a second operation in the callback of the first."""

    def gather(reduced: Any) -> Any:
        mine = reduced.value()[0].chunk(group.size())[group.rank()].contiguous()
        whole = torch.empty(mine.numel() * group.size())
        dist.all_gather_into_tensor(whole, mine, group=group, async_op=True).get_future().wait()
        return bucket.buffer().copy_(whole.div_(group.size()))

    return dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future().then(gather)


HOOKS: dict[str, tuple[Any, float]] = {
    "allreduce": (default_hooks.allreduce_hook, 1e-5),
    "fp16": (default_hooks.fp16_compress_hook, 2e-3),
    "bf16": (bf16_hook, 2e-2),
    "fp16 wrapper": (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), 2e-3),
}


def hook_check(name: str) -> None:
    """Hooks that lose nothing, or little, end near the reference."""
    hook, tolerance = HOOKS[name]
    ddp = DDP(model(), bucket_cap_mb=TINY)
    ddp.register_comm_hook(dist.group.WORLD, hook)
    train(ddp, sgd(ddp), dist.get_rank())
    assert_same_parameters(ddp, trained_alone(dist.get_world_size()), tolerance)


@pytest.mark.parametrize("name", list(HOOKS))
def test_comm_hooks(c10d: Any, name: str) -> None:
    c10d(hook_check, name)


def chained_check() -> None:
    generator = torch.Generator().manual_seed(1)
    wide = torch.nn.Linear(15, 16)  # one bucket that two ranks share evenly
    with torch.no_grad():
        for parameter in wide.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    ddp = DDP(wide)
    ddp.register_comm_hook(dist.group.WORLD, chained_hook)
    ddp(torch.full((2, 15), float(dist.get_rank() + 1))).sum().backward()
    assert torch.equal(wide.weight.grad, torch.full((16, 15), 3.0))
    assert torch.equal(wide.bias.grad, torch.full((16,), 2.0))


def test_a_hook_that_waits_in_its_callback(c10d: Any) -> None:
    c10d(chained_check)


def noop_check() -> None:
    ddp = DDP(model())
    ddp.register_comm_hook(None, debugging_hooks.noop_hook)
    loss_of(ddp, dist.get_rank(), 0).backward()
    mine = model()
    loss_of(mine, dist.get_rank(), 0).backward()
    for ours, theirs in zip(ddp.parameters(), mine.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_the_noop_hook_leaves_local_gradients(c10d: Any) -> None:
    c10d(noop_check)


def same_everywhere(module: Any) -> None:
    """Every rank has the bits of rank 0."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
    everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, flat)
    for rank, other in enumerate(everyone):
        assert torch.equal(flat, other), rank


def power_sgd_check() -> float:
    """Compression with error feedback: it learns, alike on all ranks. Returns the last loss over the first."""
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=3, min_compression_rate=0.5
    )
    ddp = DDP(model())  # one bucket: PyTorch's hook does not order the operations of several
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = sgd(ddp)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        loss = loss_of(ddp, dist.get_rank(), 0)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    same_everywhere(ddp)
    assert state.iter > 3
    return losses[-1] / losses[0]


def test_power_sgd(c10d: Any) -> None:
    assert max(c10d(power_sgd_check)) < 0.7


def local_sgd_check() -> None:
    """Local steps after the third, averaged by hand at the end: as three steps together and two alone."""
    rank, size = dist.get_rank(), dist.get_world_size()
    state = post_localSGD_hook.PostLocalSGDState(
        None, dist.new_subgroups(group_size=1)[0], start_localSGD_iter=STEPS
    )
    ddp = DDP(model())
    ddp.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    train(ddp, sgd(ddp), rank, steps=STEPS + 2)
    mine = trained_alone(size)
    optimizer = sgd(mine)
    for step in range(STEPS, STEPS + 2):
        optimizer.zero_grad()
        loss_of(mine, rank, step).backward()
        optimizer.step()
    assert_same_parameters(ddp, mine)


def test_post_local_sgd(c10d: Any) -> None:
    c10d(local_sgd_check)


def overlapped_optimizer_check() -> None:
    """The optimizer steps in the callback of each bucket's future."""
    ddp = DDP(model(), bucket_cap_mb=TINY)
    ddp._register_fused_optim(torch.optim.SGD, lr=0.1)
    for step in range(STEPS):
        ddp.zero_grad()
        loss_of(ddp, dist.get_rank(), step).backward()
    assert_same_parameters(ddp, trained_alone(dist.get_world_size()))


def test_an_optimizer_in_the_callbacks(c10d: Any) -> None:
    c10d(overlapped_optimizer_check)


def no_sync_check() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    ddp = DDP(model(), bucket_cap_mb=TINY)
    with ddp.no_sync():
        loss_of(ddp, rank, 0).backward()
    mine = model()
    loss_of(mine, rank, 0).backward()
    for ours, theirs in zip(ddp.parameters(), mine.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    loss_of(ddp, rank, 1).backward()
    alone = model()
    (sum(loss_of(alone, r, step) for r in range(size) for step in (0, 1)) / size).backward()
    for ours, theirs in zip(ddp.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_no_sync_accumulates(c10d: Any) -> None:
    c10d(no_sync_check)


def buffers_check() -> None:
    rank = dist.get_rank()
    norm = torch.nn.BatchNorm1d(12)
    ddp = DDP(torch.nn.Sequential(norm, torch.nn.Linear(12, 4)))
    for step in range(2):
        loss_of(ddp, rank, step).backward()
    ddp.eval()
    ddp(torch.zeros(1, 12))
    first = torch.nn.BatchNorm1d(12)
    for step in range(2):
        first(batch(0, step)[0])
    if rank == 0:  # the statistics of rank 0 go to all at the beginning of a forward pass that trains
        torch.testing.assert_close(norm.running_mean, first.running_mean)
    ddp.train()
    loss_of(ddp, 0, 2)  # the same data everywhere, after the same statistics
    first(batch(0, 2)[0])
    torch.testing.assert_close(norm.running_mean, first.running_mean)
    assert norm.num_batches_tracked == 3


def test_buffers_come_from_rank_0(c10d: Any) -> None:
    c10d(buffers_check, size=3)


class Mixed(torch.nn.Module):
    """Parameters of four dtypes, one of them not trained."""

    def __init__(self) -> None:
        super().__init__()
        dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        self.weights = torch.nn.ParameterList(torch.full((5, 3), 0.5, dtype=dtype) for dtype in dtypes)
        self.fixed = torch.nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, inputs: Any) -> Any:
        return sum((inputs.to(w.dtype) * w).sum().double() for w in self.weights) * self.fixed.sum()


def mixed_check() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    ddp = DDP(Mixed(), bucket_cap_mb=40 / 2**20)
    ddp(torch.full((5, 3), float(rank + 1))).backward()
    for weight in ddp.module.weights:
        want = torch.full((5, 3), 3 * (size + 1) / 2, dtype=weight.dtype)
        assert weight.grad.dtype == weight.dtype
        torch.testing.assert_close(weight.grad, want)


def test_mixed_dtypes(c10d: Any) -> None:
    c10d(mixed_check, size=3)


def join_check(divide_by_initial: bool) -> None:
    """Rank r has r more steps than rank 0; those that have ended shadow the others' collectives."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ddp = DDP(model(), bucket_cap_mb=TINY)
    with Join([ddp], divide_by_initial_world_size=divide_by_initial):
        train(ddp, sgd(ddp), rank, steps=STEPS + rank)
    alone = model()
    optimizer = sgd(alone)
    for step in range(STEPS + size - 1):
        active = [r for r in range(size) if step < STEPS + r]
        optimizer.zero_grad()
        (
            sum(loss_of(alone, r, step) for r in active) / (size if divide_by_initial else len(active))
        ).backward()
        optimizer.step()
    assert_same_parameters(ddp, alone)


@pytest.mark.parametrize("divide_by_initial", [True, False])
def test_join_with_uneven_inputs(c10d: Any, divide_by_initial: bool) -> None:
    c10d(join_check, divide_by_initial, size=3)


def join_throws_check() -> str:
    ddp = DDP(model())
    rank = dist.get_rank()
    with pytest.raises(RuntimeError) as caught, Join([ddp], throw_on_early_termination=True):
        train(ddp, sgd(ddp), rank, steps=1 + rank)
    return str(caught.value)


def test_join_can_throw_at_the_first_end(c10d: Any) -> None:
    first, second = c10d(join_throws_check, fresh=True)
    assert "exhausted" in first + second


def model_parallel_group_check() -> None:
    """Two data-parallel groups side by side."""
    rank = dist.get_rank()
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    ddp = DDP(model(), process_group=groups[rank % 2], bucket_cap_mb=TINY)
    train(ddp, sgd(ddp), rank)
    alone = model()
    optimizer = sgd(alone)
    for step in range(STEPS):
        optimizer.zero_grad()
        (sum(loss_of(alone, r, step) for r in (rank % 2, rank % 2 + 2)) / 2).backward()
        optimizer.step()
    assert_same_parameters(ddp, alone)


def test_groups_side_by_side(c10d: Any) -> None:
    c10d(model_parallel_group_check, size=4)


def equal_to_gloo_check() -> None:
    """The same training on gloo, beside, in the same processes."""
    rank = dist.get_rank()
    gloo = dist.new_group(backend="gloo")
    ours, theirs = DDP(model(), bucket_cap_mb=TINY), DDP(model(), process_group=gloo, bucket_cap_mb=TINY)
    for ddp in (ours, theirs):
        train(ddp, torch.optim.AdamW(ddp.parameters(), lr=0.01), rank, steps=20)
    assert_same_parameters(ours, theirs, 1e-4)


def test_the_same_as_gloo(c10d: Any) -> None:
    c10d(equal_to_gloo_check, size=3)
