"""Gradients that come in another order than those of the first step: buckets are cut anew, and no value changes."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream.torch as hvd  # noqa: E402
from slipstream.base import recording  # noqa: E402
from slipstream.gradients import buckets, likeness, order  # noqa: E402

COUNT, ROWS, WIDTH = 6, 4, 7
UP, DOWN = list(range(COUNT)), list(range(COUNT - 1, -1, -1))
SHOW = order.STEPS_TO_SHOW
Order = Callable[[int, int], list[int]]  # of a rank and a step: the branches, in the order in which they run


class Branches(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A sum of branches: gradients come in the opposite order of that in which these run; some may not run."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = torch.nn.ModuleList(torch.nn.Linear(5, WIDTH, bias=False) for _ in range(COUNT))

    def forward(self, x: Any, running: list[int]) -> Any:
        return sum(torch.tanh(self.branches[i](x)) * (i + 1) for i in running)


class Tables(Branches):
    """The same, with a table of embeddings whose gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(9, WIDTH, sparse=True)

    def forward(self, x: Any, running: list[int]) -> Any:
        return super().forward(x, running) + self.table((9 * x[:, 0]).long())


def make_model(kind: type = Branches) -> Any:
    torch.manual_seed(11)
    return kind().double()


def batch(rank: int, step: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.rand((ROWS, 5), generator=generator, dtype=torch.float64)
    return x, torch.rand((ROWS, WIDTH), generator=generator, dtype=torch.float64)


def backward(model: Any, rank: int, step: int, running: list[int], factor: float = 1.0) -> None:
    x, y = batch(rank, step)
    (torch.nn.functional.mse_loss(model(x, running), y) * factor).backward()


@contextlib.contextmanager
def one_branch_a_bucket() -> Iterator[list[recording.Recorded]]:
    """Buckets of one gradient each; yields what is told of orders."""
    names = ("BUCKET_BYTES", "FIRST_BUCKET_BYTES", "LAST_BUCKET_BYTES")
    before, told = [getattr(buckets, name) for name in names], []

    def listener(event: recording.Recorded) -> None:
        if event.name.startswith("order "):
            told.append(event)

    recording.listen(listener)
    overlapped, likeness.OVERLAPPED_BYTES = likeness.OVERLAPPED_BYTES, 64
    for name in names:
        setattr(buckets, name, 64)
    try:
        yield told
    finally:
        recording.stop_listening(listener)
        likeness.OVERLAPPED_BYTES = overlapped
        for name, value in zip(names, before, strict=True):
            setattr(buckets, name, value)


def sgd(model: Any) -> Any:
    momentum = 0.0 if isinstance(model, Tables) else 0.9
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)


def wrapped(model: Any, make: Callable[[Any], Any] = sgd, **options: Any) -> Any:
    return hvd.DistributedOptimizer(make(model), named_parameters=model.named_parameters(), **options)


def layout(optimizer: Any) -> list[list[int]]:
    """The branches in each bucket."""
    parts = optimizer._exchange._parts()
    return [[int(parameter.name.split(".")[1]) for parameter in part] for part in parts]


def assert_same_everywhere(value: Any) -> None:
    assert len({repr(one) for one in hvd.allgather_object(value)}) == 1


def assert_close(model: Any, alone: Any) -> None:
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert_same_everywhere([p.detach().numpy().tobytes() for p in model.parameters()])


def train(running: Order, steps: int, passes: int = 1, kind: type = Branches, **options: Any) -> Any:
    """Trains on the ranks' parts, and alone on all of them; returns the model, its optimizer, and the lone model."""
    model, alone = make_model(kind), make_model(kind)
    distributed, single = wrapped(model, backward_passes_per_step=passes, **options), sgd(alone)
    for step in range(steps):
        distributed.zero_grad(set_to_none=step % 3 != 0)
        single.zero_grad(set_to_none=False)
        for number in range(passes):
            backward(model, hvd.rank(), passes * step + number, running(hvd.rank(), step))
            for rank in range(hvd.size()):
                backward(alone, rank, passes * step + number, running(rank, step), 1 / hvd.size())
        for parameter in alone.parameters():  # a gradient that no rank has is zero
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        distributed.step()
        single.step()
    return model, distributed, alone


def turned(rank: int, step: int) -> list[int]:
    return DOWN if step < 2 else UP


def frozen(rank: int, step: int) -> list[int]:
    """The branches whose gradients come first do not run for some steps."""
    return UP if step < 2 or step > 2 * SHOW else UP[: COUNT - 2]


def by_rank(rank: int, step: int) -> list[int]:
    """Each rank has an order of its own, from the beginning and after the change."""
    order = UP if step < 2 else DOWN
    return order[:-2] + order[-2:][::-1] if rank % 2 else order


def one_rank_alone(rank: int, step: int) -> list[int]:
    return turned(rank, step) if rank == 0 else DOWN


def check_turned() -> None:
    with one_branch_a_bucket() as told:
        model, optimizer, alone = train(turned, 2)
        assert layout(optimizer) == [[i] for i in UP]
        model, optimizer, alone = train(turned, 2 + SHOW)
        assert told == []
        assert layout(optimizer) == [[i] for i in UP]
        model, optimizer, alone = train(turned, 2 + SHOW + 1)
        assert layout(optimizer) == [[i] for i in DOWN]
        assert_close(model, alone)
        model, optimizer, alone = train(turned, 4 * SHOW)
        assert_close(model, alone)
        assert [event.name for event in told] == ["order learnt again"] * 2
        assert told[0].details == {
            "buckets": COUNT,
            "percent_hidden_before": 0,
            "percent_hidden_after": 83,
        }


def launched_in_backward(optimizer: Any, model: Any, step: int, running: list[int]) -> int:
    """How many buckets travel when backward is over."""
    optimizer.zero_grad()
    backward(model, hvd.rank(), step, running)
    launched: int = optimizer._exchange._next
    optimizer.step()
    return launched


def check_buckets_no_longer_wait() -> None:
    """Two branches are frozen: their buckets held up all others."""
    with one_branch_a_bucket():
        model = make_model()
        optimizer = wrapped(model)
        found = [
            launched_in_backward(optimizer, model, step, frozen(0, step)) for step in range(2 + 2 * SHOW)
        ]
    assert found[1:3] == [COUNT, 0]
    assert found[2 + SHOW + 1] == COUNT - 2
    assert layout(optimizer)[-2:] == [[COUNT - 1], [COUNT - 2]]
    found = [launched_in_backward(optimizer, model, step, UP) for step in range(2)]
    assert found == [COUNT] * 2  # they come again, at the end of the exchange


def check_by_rank() -> None:
    """All take the highest place of any rank; what has the same place stays as it was."""
    with one_branch_a_bucket():
        _, optimizer, _ = train(by_rank, 2)
        assert layout(optimizer) == [[5], [4], [3], [2], [1], [0]]
        model, optimizer, alone = train(by_rank, 3 * SHOW)
    assert layout(optimizer) == [[1], [0], [2], [3], [4], [5]]
    assert_same_everywhere(layout(optimizer))
    assert_close(model, alone)


def check_no_order_fits_all() -> None:
    """One rank alone goes the other way: all agree on what is best for both, and do not change it again and again."""
    keep, order.STEPS_TO_KEEP = order.STEPS_TO_KEEP, SHOW
    try:
        with one_branch_a_bucket() as told:
            model, optimizer, alone = train(one_rank_alone, 10 * SHOW)
    finally:
        order.STEPS_TO_KEEP = keep
    assert layout(optimizer) == [[2], [3], [1], [4], [0], [5]]
    assert_same_everywhere(layout(optimizer))
    assert [event.name for event in told] == ["order learnt again", *["order kept"] * 3]
    assert_close(model, alone)


def check_options() -> None:
    """What else an optimizer may do at the same time."""
    for options in (
        {"passes": 2},
        {"groups": 2},
        {"gradient_predivide_factor": 2.0},
        {"kind": Tables},
        {"kind": Tables, "sparse_as_dense": True},
    ):
        with one_branch_a_bucket() as told:
            model, _, alone = train(turned, 3 * SHOW, **options)
        assert [event.name for event in told] == ["order learnt again"], options
        assert_close(model, alone)


def weights(running: Order, steps: int, make: Callable[[Any], Any] = sgd, **options: Any) -> tuple[Any, Any]:
    """The model after some steps, and its optimizer."""
    model = make_model()
    if options.pop("overlapped", False):
        options["overlap_forward"] = model
    optimizer = wrapped(model, make, **options)
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, hvd.rank(), step, running(hvd.rank(), step))
        optimizer.step()
    optimizer.settle()
    return model, optimizer


def check_overlapped() -> None:
    with one_branch_a_bucket() as told:
        for running in (turned, frozen):
            plain, _ = weights(running, 4 * SHOW)
            model, optimizer = weights(running, 4 * SHOW, overlapped=True)
            assert all(
                torch.equal(one, other)
                for one, other in zip(model.parameters(), plain.parameters(), strict=True)
            )
            assert optimizer._exchange._due is False
        assert [event.name for event in told] == ["order learnt again"] * 4


def check_process_set() -> None:
    members = hvd.add_process_set([0, 2])
    try:
        with one_branch_a_bucket() as told:
            model, _ = weights(turned, 3 * SHOW, process_set=members)
        assert [event.name for event in told] == ["order learnt again"] * (hvd.rank() != 1)
        weight = model.branches[0].weight.detach().numpy().tobytes()
        found = hvd.allgather_object(weight)
        assert found[0] == found[2] != found[1]
    finally:
        hvd.remove_process_set(members)


def check_kept_gradients() -> None:
    """Gradients that a script keeps stay as they are; those of the step in which buckets are cut anew, too."""
    with one_branch_a_bucket() as told:
        model = make_model()
        optimizer = wrapped(model)
        kept, copies = [], []
        for step in range(3 * SHOW):
            optimizer.zero_grad()
            backward(model, hvd.rank(), step, turned(0, step))
            optimizer.step()
            kept.append([p.grad for p in model.parameters()])
            copies.append([p.grad.clone() for p in model.parameters()])
        assert len(told) == 1
        assert all(
            torch.equal(a, b)
            for one, other in zip(kept, copies, strict=True)
            for a, b in zip(one, other, strict=True)
        )


COMPRESSIONS = {
    "topk": lambda: hvd.Compression.topk(0.2),
    "powersgd": lambda: hvd.Compression.powersgd(rank=1),
    "int8": lambda: hvd.Compression.wire("int8", error_feedback=True),
    "fp16": lambda: hvd.Compression.fp16,
}


def compressed(name: str, steps: int) -> tuple[Any, list[Any]]:
    """A model of float32 after some steps, and what its optimizer remembered before and after buckets were cut anew."""
    model = make_model().float()
    optimizer = wrapped(model, compression=COMPRESSIONS[name](), exact=lambda name, parameter: False)
    learn, states = optimizer._exchange._learn_again, []

    def learn_again() -> None:
        for part in (lambda: None, learn):
            part()
            states.append(optimizer._exchange.state_dict()["parameters"])

    optimizer._exchange._learn_again = learn_again
    for step in range(steps):
        optimizer.zero_grad()
        x, y = batch(hvd.rank(), step)
        torch.nn.functional.mse_loss(model(x.float(), turned(0, step)), y.float()).backward()
        optimizer.step()
    saved = copy.deepcopy(optimizer.compression_state_dict())
    optimizer.load_compression_state_dict(saved)
    again = optimizer.compression_state_dict()
    assert saved["parameters"].keys() == again["parameters"].keys()
    return model, states


def check_compression(name: str) -> None:
    """What compressions owe moves with the gradients: values are those of buckets that stay."""
    with one_branch_a_bucket() as told:
        model, states = compressed(name, 4 * SHOW)
        assert [event.name for event in told] == ["order learnt again"]
        before, after = states
        assert before.keys() == after.keys()
        for key, arrays in before.items():
            assert bool(arrays) is (name != "fp16")
            for what, array in arrays.items():
                assert array.any(), (key, what)
                assert (array == after[key][what]).all(), (key, what)
        least, order.LEAST_GAIN = order.LEAST_GAIN, 2.0
        try:
            plain, states = compressed(name, 4 * SHOW)
        finally:
            order.LEAST_GAIN = least
        assert states == []
    if hvd.size() == 2 or name == "topk":  # else sums depend on the place in a bucket, in their last bits
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(one, other)
    assert_same_everywhere([p.detach().numpy().tobytes() for p in model.parameters()])


def check_join() -> None:
    """A rank joins before the others wish for another order, and between their wish and their agreement."""
    for batches in (1, 2 + SHOW - 1, 2 + SHOW, 2 + SHOW + 1):
        with one_branch_a_bucket() as told:
            model = make_model()
            optimizer = wrapped(model)
            for step in range(batches if hvd.rank() == 1 else 3 * SHOW):
                optimizer.zero_grad()
                backward(model, hvd.rank(), step, turned(0, step))
                optimizer.step()
            hvd.join()
            assert [event.name for event in told] == ["order learnt again"], batches
            assert layout(optimizer) == [[i] for i in DOWN]
            assert_same_everywhere(layout(optimizer))
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [hvd.size()] * 2


def check_log() -> None:
    records: list[logging.LogRecord] = []
    logger = logging.getLogger("slipstream.gradients")
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with one_branch_a_bucket():
            train(turned, 3 * SHOW)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    texts = [record.getMessage() for record in records]
    assert texts == [
        "gradients come in another order: 6 buckets are cut anew, which can hide 83 % of their exchange behind "
        "backward in place of 0 %"
    ] * (hvd.rank() == 0)


CHECKS = [
    check_turned,
    check_buckets_no_longer_wait,
    check_by_rank,
    check_no_order_fits_all,
    check_overlapped,
    check_kept_gradients,
    check_join,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_on_two_ranks(two: Any, check: Any) -> None:
    two(check)


@pytest.mark.parametrize(
    "check",
    [check_by_rank, check_options, check_process_set, check_join, check_log],
    ids=lambda check: check.__name__.removeprefix("check_"),
)
def test_on_three_ranks(three: Any, check: Any) -> None:
    three(check)


@pytest.mark.parametrize("name", ["topk", "powersgd", "fp16"])
def test_compressions(two: Any, name: str) -> None:
    two(check_compression, name)


@pytest.mark.parametrize("name", ["topk", "int8"])
def test_compressions_between_hosts(hosts: Any, name: str) -> None:
    hosts(check_compression, name)
