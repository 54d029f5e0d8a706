"""Ranks that join before they have stepped an optimizer, or made one: the others tell them what it is like."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import slipstream.torch as hvd  # noqa: E402
from comm import ranks  # noqa: E402
from faces.rank_jobs import Ranks  # noqa: E402
from slipstream.base.errors import Mismatch  # noqa: E402

SHAPES = {
    "weight": (80, 70),
    "bias": (70,),
    "half": (33, 5),
    "brain": (9,),
    "double": (4, 4),
    "one": (),
    "none": (0,),
}
KINDS = {"half": torch.float16, "brain": torch.bfloat16, "double": torch.float64}


def first() -> bool:
    """Whether this rank joins before the others step: the last one; of more than two ranks also rank 0."""
    return hvd.rank() == hvd.size() - 1 or (hvd.size() > 2 and hvd.rank() == 0)


def stepping() -> list[int]:
    return [rank for rank in range(hvd.size()) if rank != hvd.size() - 1 and (hvd.size() == 2 or rank)]


def gradient(name: str, rank: int, step: int) -> Any:
    """Numbers that 16 bits hold exactly, and their sums."""
    at = list(SHAPES).index(name)
    draws = np.random.default_rng([at, rank, step]).integers(-8, 9, SHAPES[name])
    return np.asarray(draws, np.float64)


def parameters() -> dict[str, Any]:
    return {
        name: torch.nn.Parameter(torch.zeros(shape, dtype=KINDS.get(name, torch.float32)))
        for name, shape in SHAPES.items()
    }


def optimizer_of(params: dict[str, Any], named: bool = True, **options: Any) -> Any:
    inner = torch.optim.SGD(list(params.values()), lr=1.0)
    return hvd.DistributedOptimizer(inner, named_parameters=params.items() if named else None, **options)


def step(optimizer: Any, params: dict[str, Any], number: int, passes: int = 1) -> None:
    optimizer.zero_grad()
    for part in range(passes):
        loss = torch.zeros((), dtype=torch.float64)
        for name, param in params.items():
            given = torch.tensor(gradient(name, hvd.rank(), number + 100 * part)).to(param.dtype)
            loss = loss + (param * given).sum().double()
        loss.backward()
    optimizer.step()


def of_all(op: int, found: list[Any], size: int) -> Any:
    """What the reduction makes of the gradients of some of ``size`` ranks."""
    if op in (hvd.Sum, hvd.Average):
        return sum(found) / (size if op == hvd.Average else 1)
    by = {hvd.Min: np.minimum, hvd.Max: np.maximum, hvd.Product: np.multiply}[op]
    return functools.reduce(by, found)


def check_parameters(
    params: dict[str, Any], steps: list[tuple[list[int], int]], op: int, passes: int
) -> None:
    """That ``params`` are what NumPy makes of steps: the ranks that have gradients in each, and its number."""
    for name, param in params.items():
        wanted = np.zeros(SHAPES[name])
        for ranks_of, number in steps:
            found = [sum(gradient(name, r, number + 100 * part) for part in range(passes)) for r in ranks_of]
            wanted = wanted - of_all(op, found, hvd.size())
        np.testing.assert_allclose(param.detach().double().numpy(), wanted, rtol=0.02, atol=0.1, err_msg=name)


def uneven(options: dict[str, Any], owns: bool) -> dict[str, Any]:
    """Steps without this rank, then steps of all, then steps without it again; returns the parameters.

    ``owns``: a rank that joins first has made the optimizer before.
    """
    params = parameters()
    optimizer = optimizer_of(params, **options) if owns or not first() else None
    passes = options.get("backward_passes_per_step", 1)
    for number in range(0 if first() else 3):
        step(optimizer, params, number, passes)
    last = hvd.join()
    assert last in stepping()
    hvd.broadcast_parameters(params.items(), root_rank=last)
    if optimizer is None:
        optimizer = optimizer_of(params, **options)
    for number in (3, 4):
        step(optimizer, params, number, passes)
    if not first():
        step(optimizer, params, 5, passes)
    assert hvd.join() in stepping()
    return params


STEPS = [(True, 0), (True, 1), (True, 2), (False, 3), (False, 4), (True, 5)]
EXACT = {
    "average": {},
    "sum": {"op": hvd.Sum},
    "min": {"op": hvd.Min},
    "max": {"op": hvd.Max},
    "passes": {"backward_passes_per_step": 2},
    "predivide": {"gradient_predivide_factor": 2.0},
    "groups": {"groups": 2},
    "unnamed": {"named": False},
    "fp16": {"compression": hvd.Compression.fp16},
    "bf16": {"compression": hvd.Compression.bf16},
}


def check_against_numpy(which: str) -> None:
    options = EXACT[which]
    steps = [(stepping() if alone else list(range(hvd.size())), number) for alone, number in STEPS]
    if first():  # which has not the last step of the others
        steps = steps[:-1]
    op, passes = options.get("op", hvd.Average), options.get("backward_passes_per_step", 1)
    check_parameters(uneven(options, owns=False), steps, op, passes)


LOSSY = {
    "int8": {"compression": hvd.Compression.int8},
    "f8": {"compression": hvd.Compression.f8},
    "feedback": {"compression": hvd.Compression.wire("int8", error_feedback=True)},
    "topk": {"compression": hvd.Compression.topk(0.05)},
    "powersgd": {"compression": hvd.Compression.powersgd(2)},
    "exact": {"compression": hvd.Compression.int8, "exact": ["weight"]},
    "adasum": {"op": hvd.Adasum},
}


def check_as_with_the_optimizer(which: str) -> None:
    """A rank that has not made the optimizer changes nothing, compared with one that has."""
    found, wanted = (uneven(LOSSY[which], owns) for owns in (False, True))
    for name, param in found.items():
        assert torch.equal(param, wanted[name]), name
        assert not param.numel() or bool((param != 0).any()), name


def check_overlap() -> None:
    def run(owns: bool) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(60, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3))

        def optimizer_of_model() -> Any:
            inner = torch.optim.SGD(model.parameters(), lr=0.1)
            return hvd.DistributedOptimizer(inner, model.named_parameters(), overlap_forward=model)

        def steps(count: int) -> None:
            for number in range(count):
                torch.manual_seed(10 * number + hvd.rank())
                model(torch.randn(8, 60)).square().sum().backward()
                optimizer.step()

        optimizer = optimizer_of_model() if owns or not first() else None
        steps(0 if first() else 4)
        if optimizer is not None:
            optimizer.settle()
        hvd.broadcast_parameters(model.state_dict(), root_rank=hvd.join())
        optimizer = optimizer or optimizer_of_model()
        steps(3)
        optimizer.settle()
        return [param.detach().clone() for param in model.parameters()]

    assert all(torch.equal(one, other) for one, other in zip(run(False), run(True), strict=True))


def check_sparse() -> None:
    def run(owns: bool, dense: bool) -> Any:
        torch.manual_seed(0)
        table = torch.nn.Embedding(50, 4, sparse=True)
        head = torch.nn.Linear(4, 2)
        params = [*table.parameters(), *head.parameters()]

        def made() -> Any:
            return hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.1), sparse_as_dense=dense)

        def steps(count: int) -> None:
            for number in range(count):
                optimizer.zero_grad()
                head(table(torch.tensor([number, 2 * number + hvd.rank(), 7]))).square().sum().backward()
                optimizer.step()

        optimizer = made() if owns or not first() else None
        steps(0 if first() else 4)
        for param in params:
            hvd.broadcast_(param.data, hvd.join() if param is params[0] else stepping()[0])
        optimizer = optimizer or made()
        steps(2)
        return [param.detach().clone() for param in params]

    for dense in (False, True):
        assert all(
            torch.equal(one, other) for one, other in zip(run(False, dense), run(True, dense), strict=True)
        )


def trained(params: dict[str, Any]) -> float:
    """What all numbers of ``one`` have become."""
    return float(params["one"].item())


def wanted(*steps: tuple[list[int], int]) -> float:
    return (
        -sum(float(gradient("one", r, number)) for ranks_of, number in steps for r in ranks_of) / hvd.size()
    )


def check_several_optimizers() -> None:
    """This rank has stepped the first, made the second, and has no third."""
    everyone = list(range(hvd.size()))
    params = [parameters() for _ in range(3)]
    optimizers = [optimizer_of(params[0]), optimizer_of(params[1])]
    step(optimizers[0], params[0], 0)
    if not first():
        optimizers.append(optimizer_of(params[2]))
        for number, which in enumerate((2, 0, 1, 2, 1, 0), 1):
            step(optimizers[which], params[which], number)
    assert hvd.join() in stepping()
    there = stepping()
    alone = [[(there, 2), (there, 6)], [(there, 3), (there, 5)], [(there, 1), (there, 4)]]
    if first():
        optimizers.append(optimizer_of(params[2]))
        alone = [[], [], []]
    for number, which in enumerate((1, 2, 0), 7):
        step(optimizers[which], params[which], number)
    before: list[tuple[list[int], int]] = [(everyone, 0)]
    assert trained(params[0]) == pytest.approx(wanted(*before, *alone[0], (everyone, 9)))
    assert trained(params[1]) == pytest.approx(wanted(*alone[1], (everyone, 7)))
    assert trained(params[2]) == pytest.approx(wanted(*alone[2], (everyone, 8)))


def check_folds() -> None:
    """Optimizers that look alike, made anew after each join: a rank that lacked one makes the next with the others."""
    everyone = list(range(hvd.size()))
    for fold in range(4):
        missing = fold % 2 == 0 and first()
        params = parameters()
        if not missing:
            optimizer = optimizer_of(params)
            step(optimizer, params, fold)
            assert trained(params) == pytest.approx(wanted((everyone if fold % 2 else stepping(), fold)))
        hvd.join()


def check_made_in_another_order() -> None:
    """What a rank makes after its join is what it looks like, and not what has its place."""
    names = ("double", "one")
    alike = {
        name: {name: torch.nn.Parameter(torch.zeros(SHAPES[name], dtype=KINDS.get(name)))} for name in names
    }
    optimizers = {name: optimizer_of(alike[name]) for name in names} if not first() else {}
    for number, name in enumerate(names if not first() else ()):
        step(optimizers[name], alike[name], number)
    hvd.join()
    if first():
        optimizers = {name: optimizer_of(alike[name]) for name in names[::-1]}
    for name in names:
        before = alike[name][name].detach().clone()
        step(optimizers[name], alike[name], 9)
        change = before.double().numpy() - alike[name][name].detach().double().numpy()
        np.testing.assert_allclose(change, sum(gradient(name, r, 9) for r in range(hvd.size())) / hvd.size())


def check_some_that_nobody_steps() -> None:
    """A rank that made fewer optimizers than the others makes the next one with them."""
    params = parameters()
    unused = [] if first() else [optimizer_of(parameters()) for _ in range(2)]
    hvd.join()
    optimizer = optimizer_of(params)
    for number in range(2):
        step(optimizer, params, number)
    everyone = list(range(hvd.size()))
    assert trained(params) == pytest.approx(wanted((everyone, 0), (everyone, 1)))
    del unused


def check_the_others_join_first() -> None:
    """Only ranks without a number for the optimizer step it, and those that know it take part."""
    params = parameters()
    if not first():
        optimizer = optimizer_of(params)
        step(optimizer, params, 0)
    hvd.join()
    if first():
        optimizer = optimizer_of(params)
        for number in (1, 2):
            step(optimizer, params, number)
        away = [rank for rank in range(hvd.size()) if rank not in stepping()]
        assert trained(params) == pytest.approx(wanted((away, 1), (away, 2)))
    hvd.join()
    before = trained(params)
    step(optimizer, params, 3)
    assert trained(params) - before == pytest.approx(wanted((list(range(hvd.size())), 3)))


def check_mismatch() -> None:
    """Of ranks that step: these go on, and so does the join of the other one."""
    if hvd.rank():
        param = torch.nn.Parameter(torch.zeros(hvd.rank()))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0))
        for _ in range(2):
            param.sum().backward()
            with pytest.raises(Mismatch, match="the ranks optimise different parameters"):
                optimizer.step()
        params = parameters()
        step(optimizer_of(params), params, 0)
        assert trained(params) == pytest.approx(wanted(([1, 2], 0)))
    assert hvd.join() > 0
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [3, 3]


def check_process_set() -> None:
    """A set without the rank that has joined goes on with optimizers of its own."""
    last = hvd.size() - 1
    pair = hvd.add_process_set([0, 1])
    if hvd.rank() != last:
        mine, ours = parameters(), parameters()
        optimizers = optimizer_of(mine, process_set=pair), optimizer_of(ours)
        step(optimizers[0], mine, 0)
        step(optimizers[1], ours, 1)
        assert trained(mine) == pytest.approx(sum(float(gradient("one", r, 0)) for r in (0, 1)) / -2)
        assert trained(ours) == pytest.approx(wanted(([0, 1], 1)))
    assert hvd.join() != last
    hvd.remove_process_set(pair)


CHECKS: list[Callable[[], None]] = [
    check_overlap,
    check_sparse,
    check_several_optimizers,
    check_folds,
    check_made_in_another_order,
    check_some_that_nobody_steps,
    check_the_others_join_first,
]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    found = Ranks(4, tmp_path_factory.mktemp("four"))
    yield found
    found.stop()


@pytest.fixture
def some(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("some", ["two", "three", "hosts"], indirect=True)
@pytest.mark.parametrize("which", EXACT)
def test_gradients_are_those_of_numpy(some: Any, which: str) -> None:
    some(check_against_numpy, which)


@pytest.mark.parametrize("some", ["two", "hosts"], indirect=True)
@pytest.mark.parametrize("which", LOSSY)
def test_it_changes_nothing_whether_the_rank_has_made_the_optimizer(some: Any, which: str) -> None:
    some(check_as_with_the_optimizer, which)


@pytest.mark.parametrize("some", ["two", "three"], indirect=True)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_optimizers(some: Any, check: Any) -> None:
    some(check)


@pytest.mark.parametrize("check", [check_mismatch, check_process_set])
def test_on_three_ranks(three: Any, check: Any) -> None:
    three(check)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check_several_optimizers, marks=pytest.mark.slow),
        check_folds,
        check_the_others_join_first,
    ],
)
def test_on_four_ranks(four: Any, check: Any) -> None:
    four(check)


def test_on_four_ranks_against_numpy(four: Any) -> None:
    four(check_against_numpy, "average")


def test_ranks_that_step_different_optimizers_afterwards_end_all() -> None:
    """They would wait for each other."""
    script = Path(__file__).with_name("join_rank.py")
    for text in ranks.run(script, 2, timeout=60, args=["order"]):
        assert "rank 0 steps optimizer 1, and another rank optimizer 2: give all ranks the same" in text, text


def test_a_rank_that_makes_another_optimizer_afterwards_ends_all() -> None:
    script = Path(__file__).with_name("join_rank.py")
    for text in ranks.run(script, 2, timeout=60, args=["other"]):
        assert "rank 1 steps an optimizer that is not like optimizer 1 of the other ranks (" in text, text
        assert "without a name (8,) float32 there): give all ranks the same parameters and options" in text, (
            text
        )
