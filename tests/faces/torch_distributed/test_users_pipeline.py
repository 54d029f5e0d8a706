"""Every schedule of torch.distributed.pipelining on the back end, against the whole model in one process."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.pipelining import PipelineStage, schedules  # noqa: E402

WIDTH = 6
ROWS = 24
SINGLE = ["ScheduleGPipe", "Schedule1F1B"]
LOOPED = ["ScheduleLoopedBFS", "ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble"]
V_SHAPED = ["ScheduleZBVZeroBubble", "ScheduleDualPipeV"]


def layer(number: int) -> Any:
    made = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return made


def data(step: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(500 + step)
    return tuple(torch.randn(ROWS, WIDTH, generator=generator) for _ in range(2))


def places(name: str, rank: int, size: int) -> list[int]:
    """The numbers of the stages of a rank."""
    if name in SINGLE:
        return [rank]
    return [rank, 2 * size - 1 - rank] if name in V_SHAPED else [rank, rank + size]


def schedule_check(name: str, microbatches: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    numbers = places(name, rank, size)
    count = size * len(numbers)
    modules = {number: layer(number) for number in numbers}
    stages = [PipelineStage(modules[number], number, count, torch.device("cpu")) for number in numbers]
    schedule = getattr(schedules, name)(
        stages[0] if name in SINGLE else stages,
        n_microbatches=microbatches,
        loss_fn=torch.nn.functional.mse_loss,
    )
    alone = torch.nn.Sequential(*(layer(number) for number in range(count)))
    optimizer = torch.optim.SGD([p for m in modules.values() for p in m.parameters()], lr=0.5)
    reference = torch.optim.SGD(alone.parameters(), lr=0.5)
    for step in range(2):
        inputs, targets = data(step)
        optimizer.zero_grad()
        losses: list[Any] = []
        has_first, has_last = 0 in numbers, count - 1 in numbers
        schedule.step(
            *([inputs] if has_first else []),
            target=targets if has_last else None,
            losses=losses if has_last else None,
        )
        optimizer.step()
        reference.zero_grad()
        loss = torch.nn.functional.mse_loss(alone(inputs), targets)
        loss.backward()
        reference.step()
        if has_last:
            torch.testing.assert_close(torch.stack(losses).mean(), loss)
    for number, module in modules.items():
        for ours, theirs in zip(module.parameters(), alone[number].parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, msg=lambda m, n=number: f"stage {n}: {m}")


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", SINGLE + LOOPED + V_SHAPED)
def test_schedules(c10d: Any, name: str, size: int) -> None:
    if not hasattr(schedules, name):
        pytest.skip(f"this PyTorch has no {name}")
    c10d(schedule_check, name, 4 * size, size=size)


def test_no_schedule_is_forgotten() -> None:
    known = {name for name in dir(schedules) if name.startswith("Schedule")}
    assert known <= set(SINGLE + LOOPED + V_SHAPED)


def data_parallel_check() -> None:
    """Two pipelines of two stages; gradients averaged between them."""
    rank = dist.get_rank()
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipe"))
    row, number = mesh.get_coordinate()
    module = layer(number)
    stage = PipelineStage(module, number, 2, torch.device("cpu"), group=mesh.get_group("pipe"))
    schedule = schedules.Schedule1F1B(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    inputs, targets = data(row)
    if number == 0:
        schedule.step(inputs)
    else:
        schedule.step(target=targets)
    for parameter in module.parameters():
        dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, group=mesh.get_group("data"))
    alone = torch.nn.Sequential(layer(0), layer(1))
    batches = [data(r) for r in range(2)]
    (sum(torch.nn.functional.mse_loss(alone(x), y) for x, y in batches) / 2).backward()
    for ours, theirs in zip(module.parameters(), alone[number].parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=lambda m, r=rank: f"rank {r}: {m}")


def test_pipelines_side_by_side(c10d: Any) -> None:
    c10d(data_parallel_check, size=4)
