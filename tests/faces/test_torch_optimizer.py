"""DistributedOptimizer and the broadcasts of state: N ranks against one process that sees the whole batch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream.torch as hvd  # noqa: E402
from slipstream.base.dtypes import DType  # noqa: E402
from slipstream.faces.torch import gradients as torch_gradients  # noqa: E402
from slipstream.gradients import buckets, reductions  # noqa: E402

ROWS = 4  # of each rank's part of a batch


def make_model(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 3)).double()


def batch(step: int) -> tuple[Any, Any]:
    """The whole batch of a step, on every rank alike."""
    generator = torch.Generator().manual_seed(step)
    count = ROWS * hvd.size()
    return (
        torch.rand((count, 5), generator=generator, dtype=torch.float64),
        torch.rand((count, 3), generator=generator, dtype=torch.float64),
    )


def part(tensor: Any) -> Any:
    return tensor[hvd.rank() * ROWS :][:ROWS]


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return torch.nn.functional.mse_loss(model(x), y)


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train_both(steps: int = 4, optimizer: Callable[[Any], Any] = sgd, **options: Any) -> tuple[Any, Any]:
    """Trains on the ranks' parts, and alone on the whole; returns both models."""
    model, alone = make_model(), make_model()
    distributed = hvd.DistributedOptimizer(
        optimizer(model), named_parameters=model.named_parameters(), **options
    )
    single = optimizer(alone)
    for step in range(steps):
        x, y = batch(step)
        distributed.zero_grad()
        loss_of(model, part(x), part(y)).backward()
        distributed.step()
        single.zero_grad()
        loss_of(alone, x, y).backward()
        single.step()
    return model, alone


def assert_same_models(a: Any, b: Any, **tolerance: float) -> None:
    for one, other in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(one, other, **tolerance)


def assert_same_everywhere(model: Any) -> None:
    for parameter in model.parameters():
        everyone = hvd.allgather_object(parameter.detach().numpy().tobytes())
        assert len(set(everyone)) == 1


def check_large_batch() -> None:
    for make in (sgd, lambda m: torch.optim.AdamW(m.parameters(), lr=0.01)):
        model, alone = train_both(optimizer=make)
        assert_same_models(model, alone)
        assert_same_everywhere(model)
    model, alone = train_both(gradient_predivide_factor=4.0)
    assert_same_models(model, alone)


def check_groups() -> None:
    for groups in (1, 3, 100):
        assert_same_models(*train_both(groups=groups))
    model, alone = make_model(), make_model()
    parameters = list(model.parameters())
    distributed = hvd.DistributedOptimizer(sgd(model), groups=[parameters[4:6], [parameters[0]]])
    single = sgd(alone)
    for step in range(3):
        x, y = batch(step)
        distributed.zero_grad()
        loss_of(model, part(x), part(y)).backward()
        distributed.step()
        single.zero_grad()
        loss_of(alone, x, y).backward()
        single.step()
    assert_same_models(model, alone)


def check_compression() -> None:
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        model, alone = train_both(compression=compression)
        assert_same_models(model, alone, rtol=5e-2, atol=5e-2)
        assert_same_everywhere(model)

    class Negative(hvd.Compressor):
        """Sends the negative in float32, which a wrong order of compress and decompress would betray."""

        @staticmethod
        def compress(tensor: Any) -> Any:
            return -tensor.float(), tensor.dtype

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            return -tensor.to(ctx)

    assert_same_models(*train_both(compression=Negative), rtol=1e-5, atol=1e-6)


def check_accumulation() -> None:
    model, alone = make_model(), make_model()
    distributed = hvd.DistributedOptimizer(sgd(model), backward_passes_per_step=2)
    single = sgd(alone)
    for step in range(3):
        distributed.zero_grad()
        single.zero_grad()
        for half in range(2):
            x, y = batch(2 * step + half)
            loss_of(model, part(x), part(y)).backward()
            loss_of(alone, x, y).backward()
        distributed.step()
        single.step()
    assert_same_models(model, alone)
    distributed.set_backward_passes_per_step(1)
    x, y = batch(0)
    distributed.zero_grad()
    loss_of(model, part(x), part(y)).backward()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        loss_of(model, part(x), part(y)).backward()
    distributed.step()


def check_zero_grad() -> None:
    model = make_model()
    distributed = hvd.DistributedOptimizer(sgd(model))
    x, y = batch(0)
    results = []
    for set_to_none in (True, False, False, True):
        distributed.zero_grad(set_to_none=set_to_none)
        before = [p.detach().clone() for p in model.parameters()]
        loss_of(model, part(x), part(y)).backward()
        with pytest.raises(AssertionError, match="zero_grad"):
            distributed.zero_grad()
        distributed.synchronize()
        results.append([p.grad.clone() for p in model.parameters()])
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), before, strict=True):
                parameter.copy_(value)
    for result in results[1:]:
        for one, other in zip(result, results[0], strict=True):
            torch.testing.assert_close(one, other)


def check_kept_gradients() -> None:
    """A gradient that somebody keeps does not change when the next one takes its place."""
    model = make_model()
    distributed = hvd.DistributedOptimizer(sgd(model))
    kept: list[Any] = []
    values: list[Any] = []
    for step in range(4):
        distributed.zero_grad()
        x, y = batch(step)
        loss_of(model, part(x), part(y)).backward()
        distributed.step()
        kept.append([p.grad for p in model.parameters()])
        values.append([p.grad.clone() for p in model.parameters()])
    for some, others in zip(kept, values, strict=True):
        for one, other in zip(some, others, strict=True):
            assert torch.equal(one, other)
    former: list[int] = []
    # and without anybody keeping them, they stay where they are
    for step in range(2):
        kept.clear()
        distributed.zero_grad()
        loss_of(model, part(x), part(y)).backward()
        distributed.step()
        addresses = [p.grad.data_ptr() for p in model.parameters()]
        if step:
            assert addresses == former
        former = addresses


class Branches(torch.nn.Module):
    """Uses its layers in an order, and leaves some out, as the rank says."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(6)).double()
        self.never = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x: Any, order: list[int]) -> Any:
        for index in order:
            x = torch.tanh(self.layers[index](x))
        return x


def check_different_ways() -> None:
    """Other orders and other unused layers on each rank: as if the missing gradients were zero."""
    size, rank = hvd.size(), hvd.rank()
    orders = [[[0, 1, 2, 3], [3, 5, 0], [1, 4]], [[5, 4, 3], [2, 1, 0], [0, 5]]]
    model, alone = Branches(), Branches()
    distributed = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    single = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(6):
        generator = torch.Generator().manual_seed(step)
        xs = [torch.rand((2, 4), generator=generator, dtype=torch.float64) for _ in range(size)]
        distributed.zero_grad()
        model(xs[rank], orders[step % 2][(rank + step) % 3]).sum().backward()
        distributed.step()
        single.zero_grad()
        total = sum(alone(xs[r], orders[step % 2][(r + step) % 3]).sum() for r in range(size))
        (total / size).backward()
        single.step()
        assert model.never.grad is not None
        assert not model.never.grad.any()
    assert_same_models(model, alone)


def check_overlap() -> None:
    """From the second step on, buckets leave while backward still runs."""
    launched: list[int] = []
    plain_all_reduce = reductions.addresses.all_reduce
    fixed = buckets.FIRST_BUCKET_BYTES, buckets.BUCKET_BYTES
    buckets.FIRST_BUCKET_BYTES = buckets.BUCKET_BYTES = 1024

    class Watch:
        def __getattr__(self, name: str) -> Any:
            return getattr(plain, name)

        @staticmethod
        def all_reduce(*arguments: Any, **options: Any) -> Any:
            launched.append(arguments[3])
            return plain_all_reduce(*arguments, **options)

    plain = reductions.addresses
    reductions.addresses = Watch()
    try:
        model = make_model()
        distributed = hvd.DistributedOptimizer(sgd(model))
        counts = []
        for step in range(3):
            x, y = batch(step)
            distributed.zero_grad()
            launched.clear()
            loss_of(model, part(x), part(y)).backward()
            counts.append(len(launched))
            distributed.step()
            assert len(launched) >= 3
        assert counts[0] == 0
        assert counts[1] == counts[2] == len(launched) >= 3
    finally:
        reductions.addresses = plain
        buckets.FIRST_BUCKET_BYTES, buckets.BUCKET_BYTES = fixed


def check_clipping() -> None:
    model, alone = make_model(), make_model()
    distributed, single = hvd.DistributedOptimizer(sgd(model)), sgd(alone)
    for step in range(3):
        x, y = batch(step)
        distributed.zero_grad()
        loss_of(model, part(x), part(y)).backward()
        distributed.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with distributed.skip_synchronize():
            distributed.step()
        single.zero_grad()
        loss_of(alone, x, y).backward()
        torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        single.step()
    assert_same_models(model, alone)
    loss_of(model, part(x), part(y)).backward()
    distributed.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        distributed.step()


def check_closure() -> None:
    model, alone = make_model(), make_model()
    distributed, single = hvd.DistributedOptimizer(sgd(model)), sgd(alone)
    for step in range(3):
        x, y = batch(step)

        def closure(optimizer: Any, net: Any, a: Any, b: Any) -> Any:
            optimizer.zero_grad()
            loss = loss_of(net, a, b)
            loss.backward()
            return loss

        loss = distributed.step(lambda x=x, y=y: closure(distributed, model, part(x), part(y)))
        assert float(loss) > 0
        single.step(lambda x=x, y=y: closure(single, alone, x, y))
    assert_same_models(model, alone)


def check_copies() -> None:
    """A copy would not know the exchange: that is said where it is made."""
    distributed = hvd.DistributedOptimizer(sgd(make_model()))
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"DistributedOptimizer \(SGD\) cannot be copied or pickled"):
            make(distributed)


def check_scheduler() -> None:
    """A scheduler made before wrapping steers the wrapped optimizer, also after a state was loaded."""
    model = make_model()
    original = sgd(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(original, gamma=0.5)
    distributed = hvd.DistributedOptimizer(original)
    assert isinstance(distributed, torch.optim.SGD)
    x, y = batch(0)
    loss_of(model, part(x), part(y)).backward()
    distributed.step()
    assert_same_everywhere(model)
    original.step()
    scheduler.step()
    assert distributed.param_groups[0]["lr"] == 0.05
    distributed.load_state_dict(copy.deepcopy(distributed.state_dict()))
    scheduler.step()
    hooked: list[int] = []
    distributed.register_step_post_hook(lambda *_: hooked.append(1))
    assert distributed.param_groups[0]["lr"] == 0.025
    distributed.zero_grad()
    extra = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    distributed.add_param_group({"params": [extra]})
    (loss_of(model, part(x), part(y)) + extra.sum() * (hvd.rank() + 1)).backward()
    distributed.step()
    assert hooked == [1]
    average = sum(range(1, hvd.size() + 1)) / hvd.size()
    torch.testing.assert_close(extra.grad, torch.full((2,), average, dtype=torch.float64))


def check_sparse() -> None:
    for as_dense in (False, True):
        torch.manual_seed(0)
        table = torch.nn.Embedding(10, 3, sparse=True)
        whole = copy.deepcopy(table)
        distributed = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=0.5), sparse_as_dense=as_dense
        )
        single = torch.optim.SGD(whole.parameters(), lr=0.5)
        for step in range(3):
            words = torch.tensor([[(step + 3 * r) % 10, (2 * r) % 10] for r in range(hvd.size())])
            distributed.zero_grad()
            if hvd.rank() or not step:  # rank 0 has no gradient in later steps
                table(words[hvd.rank()]).sum().backward()
            distributed.step()
            single.zero_grad()
            used = words if not step else words[1:]
            (whole(used).sum() / hvd.size()).backward()
            single.step()
            assert table.weight.grad.is_sparse
        torch.testing.assert_close(table.weight, whole.weight)


def check_mixed_dtypes() -> None:
    torch.manual_seed(0)
    model = torch.nn.ParameterList(
        [torch.ones(3, dtype=d) for d in (torch.float32, torch.bfloat16, torch.float64, torch.float32)]
    )
    model.append(torch.nn.Parameter(torch.ones(2), requires_grad=False))
    distributed = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), op=hvd.Sum)
    for _ in range(2):
        distributed.zero_grad()
        sum((p * (hvd.rank() + 1)).sum().double() for p in list(model)[:4]).backward()
        distributed.step()
    total = sum(range(1, hvd.size() + 1))
    for parameter in list(model)[:4]:
        assert parameter.grad.dtype == parameter.dtype
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, total))
    assert model[4].grad is None


def check_process_set() -> None:
    """Within a set gradients are averaged; a rank outside works alone."""
    some = hvd.add_process_set([0, 1])
    weight = torch.nn.Parameter(torch.zeros(3))
    distributed = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), process_set=some)
    for _ in range(2):
        distributed.zero_grad()
        (weight * hvd.rank()).sum().backward()
        distributed.step()
    want = 0.5 if hvd.rank() < 2 else float(hvd.rank())
    torch.testing.assert_close(weight.detach(), torch.full((3,), -2 * want))
    hvd.remove_process_set(some)


def check_bad_arguments() -> None:
    model = make_model()
    named = list(model.named_parameters())
    for options, words in (
        ({"named_parameters": list(model.parameters())}, "tuples"),
        ({"named_parameters": [named[0], *named]}, "unique"),
        ({"named_parameters": named[1:]}, "not named"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "predivide"),
        ({"groups": -1}, "groups"),
        ({"groups": [[named[0][1]], [named[0][1]]]}, "once"),
    ):
        with pytest.raises(ValueError, match=words):
            hvd.DistributedOptimizer(sgd(model), **options)


def check_parameters() -> None:
    for form in (
        lambda m: m.state_dict(),
        lambda m: m.named_parameters(),
        lambda m: list(m.parameters()),
    ):
        model = make_model(seed=hvd.rank())
        hvd.broadcast_parameters(form(model), root_rank=1)
        assert_same_models(model, make_model(seed=1))
    with pytest.raises(ValueError, match="invalid params"):
        hvd.broadcast_parameters(3, root_rank=0)


def check_optimizer_state() -> None:
    makers = [
        lambda ps, lr: torch.optim.SGD(ps, lr=lr),
        lambda ps, lr: torch.optim.SGD(ps, lr=lr, momentum=0.9),
        lambda ps, lr: torch.optim.Adam(ps, lr=lr, betas=(0.5, lr), amsgrad=True),
        lambda ps, lr: torch.optim.LBFGS(ps, lr=lr, max_iter=2),
    ]
    for make in makers:
        for wrap in (False, True):
            model = make_model()
            root = hvd.rank() == 0
            optimizer = make(model.parameters(), 0.25 if root else 0.75)
            if root:  # a state to hand over, from steps the others have not made

                def closure(model: Any = model) -> Any:
                    model.zero_grad()
                    loss = loss_of(model, *batch(0))
                    loss.backward()
                    return loss

                for _ in range(3):
                    optimizer.step(closure)
                optimizer.param_groups[0]["note"] = {"why": [1, None, "text"]}
            if wrap:
                optimizer = hvd.DistributedOptimizer(optimizer)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            assert optimizer.param_groups[0]["lr"] == 0.25
            assert optimizer.param_groups[0]["note"] == {"why": [1, None, "text"]}
            states = hvd.allgather_object(optimizer.state_dict())
            assert str(states[0]) == str(states[-1])


def check_empty_state() -> None:
    """Parameters get gradients of zeros, but not those that will have sparse ones."""
    table = torch.nn.Embedding(4, 2, sparse=True)
    model = torch.nn.ModuleList([torch.nn.Linear(2, 1), table])
    model[0].bias.requires_grad_(False)
    for sparse in (False, True):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9))
        hvd.broadcast_optimizer_state(optimizer, root_rank=0, model=None if not sparse else model)
        assert torch.equal(model[0].weight.grad, torch.zeros(1, 2))
        assert model[0].bias.grad is None
        assert (table.weight.grad is None) is sparse
        optimizer.zero_grad()


def check_names() -> None:
    model = make_model()
    groups = [{"params": list(layer.parameters())} for layer in (model[0], model[2], model[4])]
    unnamed = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1))
    names = list(unnamed._parameter_names.values())
    assert len(set(names)) == 6
    assert unnamed._parameter_names[model[2].bias] == "allreduce.noname.1.1"
    named = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1), model.named_parameters())
    assert named._parameter_names[model[2].bias] == "2.bias"


def check_frozen_layers() -> None:
    """All ranks give a frozen layer the same gradient, and rank 0 tells once what that means."""
    told: list[str] = []
    kept, torch_gradients._log = (
        torch_gradients._log,
        SimpleNamespace(warning=lambda text, name: told.append(name)),
    )
    model = make_model()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    for step in range(4):
        model[2].requires_grad_(step < 2)
        optimizer.zero_grad()
        x, y = batch(step)
        loss_of(model, part(x), part(y)).backward()
        optimizer.step()
    torch_gradients._log = kept
    assert torch.equal(model[2].bias.grad, torch.zeros(16, dtype=torch.float64))
    assert_same_everywhere(model)
    assert [name in ("2.weight", "2.bias") for name in told] == [True] * (hvd.rank() == 0)


def check_groups_of_other_orders() -> None:
    """Ranks that have the parameters in different orders cut the same groups."""
    model = make_model()
    named = dict(model.named_parameters())
    order = sorted(named, reverse=bool(hvd.rank() % 2))
    optimizer = torch.optim.SGD([named[name] for name in order], lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named.items(), groups=2)
    for step in range(2):
        optimizer.zero_grad()
        x, y = batch(step)
        loss_of(model, part(x), part(y)).backward()
        optimizer.step()
    for p in model.parameters():
        assert torch.equal(p, hvd.broadcast(p.detach(), 0))


CHECKS = [
    check_empty_state,
    check_names,
    check_groups_of_other_orders,
    check_frozen_layers,
    check_large_batch,
    check_groups,
    check_compression,
    check_accumulation,
    check_zero_grad,
    check_kept_gradients,
    check_different_ways,
    check_overlap,
    check_clipping,
    check_closure,
    check_copies,
    check_scheduler,
    check_sparse,
    check_mixed_dtypes,
    check_process_set,
    check_bad_arguments,
    check_parameters,
    check_optimizer_state,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_on_three_ranks(three: Any, check: Any) -> None:
    three(check)


@pytest.mark.parametrize("check", [check_large_batch, check_optimizer_state, check_different_ways])
def test_on_two_ranks(two: Any, check: Any) -> None:
    two(check)


def check_alone() -> None:
    model, alone = train_both()
    assert_same_models(model, alone, rtol=0, atol=0)


def test_alone(jobs: Any) -> None:
    jobs[1](check_alone)


@pytest.mark.parametrize("groups", [(), [[0, 3]], [[1], [2, 4]]])
def test_cut_keeps_every_parameter_once(groups: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "FIRST_BUCKET_BYTES", 128)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 256)
    wires = [DType.F32, DType.F32, DType.F16, DType.F32, DType.F32, DType.F32]
    parameters = [buckets.Parameter(i, 10 * i, wire) for i, wire in enumerate(wires)]
    parts = buckets.cut(parameters, groups)
    assert sorted(parameter.index for part in parts for parameter in part) == list(range(6))
    assert all(len({parameter.dtype for parameter in part}) == 1 for part in parts)
    for members in groups:
        of_one_dtype = [i for i in members if wires[i] == wires[members[0]]]
        assert [part for part in parts if [parameter.index for parameter in part] == of_one_dtype]
    if not groups:
        assert [[parameter.index for parameter in part] for part in parts] == [[0, 1], [2], [3], [4], [5]]
