"""SyncBatchNorm on the ranks' parts of a batch, against PyTorch's BatchNorm on the whole."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream.torch as hvd  # noqa: E402

FEATURES = 3
LAYERS = {
    2: torch.nn.BatchNorm1d,
    3: torch.nn.BatchNorm1d,
    4: torch.nn.BatchNorm2d,
    5: torch.nn.BatchNorm3d,
}
UNEQUAL = (3, 0, 4)  # rows of each rank


def bounds() -> tuple[int, int]:
    rows = UNEQUAL[: hvd.size()]
    start = sum(rows[: hvd.rank()])
    return start, start + rows[hvd.rank()]


def whole_batch(dims: int, step: int, dtype: Any) -> Any:
    generator = torch.Generator().manual_seed(10 * dims + step)
    shape = (sum(UNEQUAL[: hvd.size()]), FEATURES, 4, 2, 3)[:dims]
    return (torch.rand(shape, generator=generator, dtype=torch.float64) * 3 + 5).to(dtype)


def set_affine(norm: Any) -> None:
    if norm.affine:
        with torch.no_grad():
            norm.weight.copy_(torch.tensor([0.5, -2.0, 3.0]))
            norm.bias.copy_(torch.tensor([1.0, 0.0, -1.0]))


def near(got: Any, want: Any, limit: float) -> None:
    assert got.dtype == want.dtype
    assert torch.allclose(got.double(), want.double(), rtol=limit, atol=limit), (got, want)


def check_layers(dims: int, limit: float, dtype: Any, **options: Any) -> None:
    parameters = torch.float64 if dtype is torch.float64 else torch.float32
    ours = hvd.SyncBatchNorm(FEATURES, **options).to(parameters)
    alone = LAYERS[dims](FEATURES, **options).to(parameters)
    set_affine(ours)
    set_affine(alone)
    low, high = bounds()
    for step in range(3):
        x = whole_batch(dims, step, dtype)
        mine, all_of = x[low:high].requires_grad_(), x.to(parameters).requires_grad_()
        y, want = ours(mine), alone(all_of)
        assert y.dtype == dtype
        near(y, want[low:high].to(dtype), limit)
        pull = torch.rand(want.shape, generator=torch.Generator().manual_seed(step)).to(parameters)
        (y * pull[low:high].to(dtype)).sum().backward()
        (want * pull.to(dtype).to(parameters)).sum().backward()
        near(mine.grad, all_of.grad[low:high].to(dtype), limit)
    if ours.affine:
        near(hvd.allreduce(ours.weight.grad, op=hvd.Sum), alone.weight.grad, limit)
        near(hvd.allreduce(ours.bias.grad, op=hvd.Sum), alone.bias.grad, limit)
    if ours.running_mean is not None:
        near(ours.running_mean, alone.running_mean, limit)
        near(ours.running_var, alone.running_var, limit)
        assert ours.num_batches_tracked == alone.num_batches_tracked == 3
    ours.eval()
    alone.eval()
    x = whole_batch(dims, 9, parameters)
    near(ours(x[low:high]), alone(x)[low:high], limit)


OPTIONS = [
    {},
    {"momentum": None},
    {"affine": False, "eps": 0.5},
    {"track_running_stats": False},
    {"momentum": 0.7},
]


@pytest.mark.parametrize(("dims", "options"), [*zip((2, 3, 4, 5, 2), OPTIONS, strict=True)])
def test_parts_are_normalised_like_the_whole(three: Any, dims: int, options: dict[str, Any]) -> None:
    three(check_float64, dims, options)


def check_float64(dims: int, options: dict[str, Any]) -> None:
    check_layers(dims, 1e-9, torch.float64, **options)


def check_other_dtypes() -> None:
    check_layers(4, 2e-5, torch.float32)
    check_layers(4, 2e-2, torch.float16)
    check_layers(2, 8e-2, torch.bfloat16)


def test_other_dtypes(three: Any) -> None:
    three(check_other_dtypes)


def check_gradients() -> None:
    """By finite differences: each rank moves its own rows, while the others repeat theirs."""
    norm = hvd.SyncBatchNorm(2, track_running_stats=False).double()
    x = torch.rand((2, 2, 2), generator=torch.Generator().manual_seed(hvd.rank()), dtype=torch.float64)
    pull = torch.rand((2, 2, 2), generator=torch.Generator().manual_seed(9 + hvd.rank()), dtype=torch.float64)

    def loss(moved: Any) -> Any:
        return (norm(moved) ** 2 * pull).sum()

    mine = x.clone().requires_grad_()
    loss(mine).backward()
    for rank in range(hvd.size()):
        for index in range(x.numel()):
            ends = []
            for step in (1e-5, -1e-5):
                moved = x.clone()
                if hvd.rank() == rank:
                    moved.view(-1)[index] += step
                with torch.no_grad():
                    ends.append(hvd.allreduce(loss(moved), op=hvd.Sum))  # of all ranks
            slope = (ends[0] - ends[1]) / 2e-5
            if hvd.rank() == rank:
                assert abs(slope - mine.grad.view(-1)[index]) < 1e-7


def test_gradients_by_differences(two: Any) -> None:
    two(check_gradients)


def check_training() -> None:
    """A model that uses one layer twice, converted, with the optimizer, against one process."""

    def make_model() -> Any:
        torch.manual_seed(0)
        norm = torch.nn.BatchNorm1d(4)
        layers = [torch.nn.Linear(2, 4), norm, torch.nn.Tanh(), torch.nn.Linear(4, 4), norm]
        return torch.nn.Sequential(*layers, torch.nn.Linear(4, 1)).double()

    alone, model = make_model(), make_model()
    weight = model[1].weight
    model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(model[1], hvd.SyncBatchNorm)
    assert model[1].weight is weight
    assert model[4] is model[1]
    single = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)
    low, high = bounds()
    for step in range(4):
        x = whole_batch(2, step, torch.float64)[:, :2]
        for net, step_of, rows in ((model, optimizer, x[low:high]), (alone, single, x)):
            step_of.zero_grad()
            (net(rows) ** 2).sum().div(7).backward()
            step_of.step()
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        near(p, q, 1e-9)
    for p, q in zip(model.buffers(), alone.buffers(), strict=True):
        near(p, q, 1e-9)


def test_training_is_that_of_one_process(three: Any) -> None:
    three(check_training)


def check_edges() -> None:
    norm = hvd.SyncBatchNorm(FEATURES)
    with pytest.raises(ValueError, match="at least 2D input"):
        norm(torch.rand(3))
    with pytest.raises(ValueError, match="expected 3 features"):
        norm(torch.rand(2, 4))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training, got 1"):
        norm(torch.rand(int(hvd.rank() == 0), FEATURES))
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()  # the job goes on
    only = hvd.add_process_set([1])
    if only.included():
        x = torch.rand(4, FEATURES)
        near(hvd.SyncBatchNorm(FEATURES, process_set=only)(x), torch.nn.BatchNorm1d(FEATURES)(x), 1e-5)
    hvd.remove_process_set(only)


def test_edges(two: Any) -> None:
    two(check_edges)


def check_join() -> None:
    """Rank 0 has batches when the others have none."""
    norm = hvd.SyncBatchNorm(FEATURES).double()
    for step in range(1 if hvd.rank() else 3):
        x = whole_batch(2, step, torch.float64).requires_grad_()
        y = norm(x)
        if step:
            near(y, torch.nn.BatchNorm1d(FEATURES).double()(x), 1e-9)
        y.sum().backward()
    assert hvd.join() == 0


def test_ranks_without_batches_may_join(three: Any) -> None:
    three(check_join)
