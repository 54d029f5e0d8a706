"""Steps that go on in the next forward pass: the same values, bit by bit, as steps that end at once."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream  # noqa: E402
import slipstream.torch as hvd  # noqa: E402
from comm import ranks  # noqa: E402
from slipstream.gradients import buckets, likeness  # noqa: E402

ROWS = 4


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Layers, parameters in a list, one that is used by another module than its own, and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(5, 8)
        self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
        self.listed = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(8)) for _ in range(2)])
        self.elsewhere = torch.nn.Linear(8, 8)
        self.last = torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        x = self.inner(self.first(x)) * self.listed[0] + self.listed[1]
        return self.last(x @ self.elsewhere.weight + self.elsewhere.bias)


def make_model() -> Any:
    torch.manual_seed(3)
    return Net().double()


def batch(step: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(100 * step + hvd.rank())
    x = torch.rand((ROWS, 5), generator=generator, dtype=torch.float64)
    return x, torch.rand((ROWS, 3), generator=generator, dtype=torch.float64)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "adam, foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
}


def groups_of(model: Any) -> list[dict[str, Any]]:
    """Weights, and the rest with options of their own."""
    named = list(model.named_parameters())
    return [
        {"params": [p for name, p in named if name.endswith("weight")]},
        {"params": [p for name, p in named if not name.endswith("weight")], "weight_decay": 0.1},
    ]


def train(kind: str, overlapped: bool, steps: int = 6) -> tuple[Any, Any, list[float]]:
    """The model, its optimizer and the losses of ``steps`` steps; the learning rate falls after each."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS[kind](groups_of(model)),
        named_parameters=model.named_parameters(),
        **({"overlap_forward": model} if overlapped else {}),
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    losses = []
    for step in range(steps):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return model, optimizer, losses


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@contextlib.contextmanager
def small_buckets() -> Iterator[None]:
    """So small that each module waits for buckets of its own."""
    fixed = buckets.FIRST_BUCKET_BYTES, likeness.OVERLAPPED_BYTES
    buckets.FIRST_BUCKET_BYTES = likeness.OVERLAPPED_BYTES = 256
    try:
        yield
    finally:
        buckets.FIRST_BUCKET_BYTES, likeness.OVERLAPPED_BYTES = fixed


def check_values(kind: str) -> None:
    with small_buckets():
        plain, _, expected = train(kind, overlapped=False)
        model, optimizer, losses = train(kind, overlapped=True)
        assert len(optimizer._exchange._unsettled) > 4  # buckets
        assert losses == expected
        assert_same(model.state_dict(), plain.state_dict())
        assert not optimizer._exchange.unsettled
        assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_values_are_those_of_steps_that_wait(two: Any, kind: str) -> None:
    two(check_values, kind)


def check_settled_by() -> None:
    """Whatever asks for the state after the step gets it."""
    plain, done, _ = train("sgd", overlapped=False)
    for look in ("optimizer", "settle", "synchronize", "closure"):
        model, optimizer, _ = train("sgd", overlapped=True)
        if look == "optimizer":
            found = copy.deepcopy(optimizer.state_dict())["state"]
            for number, state in done.state_dict()["state"].items():
                assert torch.equal(found[number]["momentum_buffer"], state["momentum_buffer"])
        elif look == "settle":
            optimizer.settle()
        elif look == "synchronize":
            optimizer.synchronize()
        else:
            before = [p.clone() for p in plain.parameters()]

            def closure(model: Any = model, before: Any = before) -> Any:
                for mine, other in zip(model.parameters(), before, strict=True):
                    assert torch.equal(mine, other)
                return model(batch(9)[0]).sum() * 0

            optimizer.step(closure)
            continue
        assert not optimizer._exchange.unsettled
        for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(mine, other)


def test_whoever_needs_the_state_completes_the_step(two: Any) -> None:
    two(check_settled_by)


def check_added() -> None:
    """Parameters that are added complete the step first, and those that are refused change nothing."""
    plain, _, _ = train("sgd", overlapped=False)
    model, optimizer, _ = train("sgd", overlapped=True)
    assert optimizer._exchange.unsettled
    exchange, groups = optimizer._exchange, len(optimizer.param_groups)
    with pytest.raises(ValueError, match='the "wire" of a parameter group'):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))], "wire": "int9"})
    assert (optimizer._exchange, len(optimizer.param_groups)) == (exchange, groups)
    assert_same(dict(model.named_parameters()), dict(plain.named_parameters()))
    added = torch.nn.Parameter(torch.zeros(3))
    optimizer.add_param_group({"params": [added]})
    for step in range(3):
        x, y = batch(step)
        (torch.nn.functional.mse_loss(model(x), y) + (added * hvd.rank()).sum()).backward()
        optimizer.step()
    optimizer.settle()
    assert torch.equal(hvd.allreduce(added.detach(), op=hvd.Min), added.detach())
    assert added.detach().any()


def check_exchange_is_kept() -> None:
    """An optimizer that cannot end its exchange does not go on without one."""
    _, optimizer, _ = train("sgd", overlapped=False)
    exchange = optimizer._exchange

    def fail() -> None:
        raise slipstream.PeerLost("rank 7 is lost", 7, "h7")

    exchange.detach = fail
    with pytest.raises(slipstream.PeerLost):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})
    assert optimizer._exchange is exchange
    del exchange.detach


@pytest.mark.parametrize("check", [check_added, check_exchange_is_kept])
def test_parameters_may_be_added_after_a_step(two: Any, check: Any) -> None:
    two(check)


def check_copies() -> None:
    """A copy of the model has the updated parameters, and no part in the steps of the model."""
    plain, _, _ = train("sgd", overlapped=False)
    model, optimizer, _ = train("sgd", overlapped=True)
    with pytest.raises(RuntimeError, match=r"cannot be pickled .* call optimizer.settle\(\) before"):
        pickle.dumps(model)
    copied = copy.deepcopy(model)
    assert not optimizer._exchange.unsettled
    loaded = pickle.loads(pickle.dumps(model))
    x, y = batch(7)
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    for other in (copied, loaded):
        assert torch.equal(other(x), plain(x))
        assert_same(other.state_dict(), plain.state_dict())
    assert optimizer._exchange.unsettled
    optimizer.settle()


def test_a_copy_of_the_model_is_as_after_the_step(two: Any) -> None:
    two(check_copies)


def seen_by_hooks(overlapped: bool) -> list[Any]:
    """The parameters that the program's own hooks find in some steps."""
    model = make_model()
    found: list[Any] = []
    for module in (model.first, model.inner[2]):
        module.register_forward_pre_hook(
            lambda module, _: found.append(next(module.parameters()).detach().clone())
        )
    options = {"overlap_forward": model} if overlapped else {}
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), **options)
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    model(batch(5)[0])
    return found


def check_hooks() -> None:
    """What the program has called before a module runs finds its parameters updated."""
    with small_buckets():
        expected, found = seen_by_hooks(False), seen_by_hooks(True)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_hooks_of_the_program_find_parameters_updated(two: Any) -> None:
    two(check_hooks)


def check_clipping() -> None:
    """A step after `synchronize` ends at once, as ever. Gradients are gone after each that may overlap."""
    found = []
    for overlapped in (False, True):
        model = make_model()
        options = {"overlap_forward": model} if overlapped else {}
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), **options)
        for step in range(4):
            x, y = batch(step)
            if not overlapped:
                optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            if step % 2:
                optimizer.synchronize()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
        found.append(model.state_dict())
    assert_same(*found)


def test_steps_that_end_at_once_in_between(two: Any) -> None:
    two(check_clipping)


def check_stale() -> None:
    """A parameter that is used before its update is there is an error, not an old value."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), overlap_forward=model)
    x, y = batch(0)
    for _ in range(2):
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    loss = (x @ model.first.weight.T).sum()  # without running the model, or its first layer
    with pytest.raises(RuntimeError, match=r"was used in a forward pass before the step .*settle\(\)"):
        loss.backward()
    optimizer.settle()


def test_a_parameter_that_is_used_too_early_is_an_error(two: Any) -> None:
    two(check_stale)


def check_handler() -> None:
    """A signal's handler that looks at the optimizer amid its exchange gets an error, and the step goes on."""
    model, optimizer, _ = train("sgd", overlapped=True)
    gradients, said = optimizer._exchange._gradients, []
    read = gradients.read

    def reading(index: int) -> None:
        with pytest.raises(RuntimeError) as caught:  # as a handler would, in the same thread
            optimizer.state_dict()
        said.append(str(caught.value))
        read(index)

    gradients.read = reading
    optimizer.settle()
    del gradients.read
    assert "a signal's handler cannot use an optimizer while its thread exchanges" in said[0]
    assert_same(model.state_dict(), train("sgd", overlapped=False)[0].state_dict())


def test_a_handler_amid_the_exchange_does_not_wait_for_it(two: Any) -> None:
    two(check_handler)


def check_disagreement() -> None:
    model = make_model()
    options = {"overlap_forward": model} if hvd.rank() == 1 else {}
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), **options)
    x, y = batch(0)
    torch.nn.functional.mse_loss(model(x), y).backward()
    with pytest.raises(slipstream.Mismatch, match="overlap_forward is given on rank 1 alone"):
        optimizer.step()


def test_all_ranks_overlap_or_none(two: Any) -> None:
    two(check_disagreement)


def check_failure() -> None:
    """A step whose exchange fails is lost, and told once: the next one is another."""
    model, optimizer, _ = train("sgd", overlapped=True)
    optimizer.settle()
    x, y = batch(0)
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    exchange = optimizer._exchange
    reductions = dict(exchange._reductions)

    class Lost:
        def finish(self) -> None:
            raise slipstream.PeerLost("rank 7 is lost", 7, "h7")

    exchange._reductions = dict.fromkeys(reductions, Lost())
    with pytest.raises(slipstream.PeerLost):
        optimizer.settle()
    exchange._reductions = reductions
    assert not exchange.unsettled
    optimizer.settle()
    for reduction in reductions.values():
        reduction.wait()
    hvd.barrier()


def test_a_step_that_fails_is_told_once(two: Any) -> None:
    two(check_failure)


def check_second_parts() -> None:
    """Compressions whose messages come in two parts end their steps at once."""
    model = make_model().float()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS["sgd"](model.parameters()),
        compression=hvd.Compression.powersgd(rank=1),
        exact=lambda name, parameter: False,
        overlap_forward=model,
    )
    for step in range(3):
        x, y = batch(step)
        torch.nn.functional.mse_loss(model(x.float()), y.float()).backward()
        optimizer.step()
        assert not optimizer._exchange.unsettled


def test_compressions_of_two_parts_do_not_overlap(two: Any) -> None:
    two(check_second_parts)


def test_an_optimizer_whose_step_is_one() -> None:
    model = torch.nn.Linear(2, 2)

    class Own(torch.optim.SGD):  # type: ignore[misc, name-defined]
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    for optimizer in (torch.optim.LBFGS(model.parameters()), Own(model.parameters(), lr=0.1)):
        with pytest.raises(ValueError, match="leave overlap_forward out"):
            hvd.DistributedOptimizer(optimizer, overlap_forward=model)
    with pytest.raises(ValueError, match=r"must be the model, a torch\.nn\.Module, not bool"):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters()), overlap_forward=True)
    with pytest.raises(ValueError, match="this model has none of the optimizer's parameters"):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters()), overlap_forward=torch.nn.Linear(2, 2))


def test_ranks_with_fewer_batches_and_a_last_step_that_nobody_waits_for() -> None:
    for text in ranks.run(Path(__file__).with_name("overlap_rank.py"), 3):
        assert text.strip() == "the same parameters"
