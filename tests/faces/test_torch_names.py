"""Ranks whose parameters differ get an error that names the parameter, and no gradient of another one."""

from __future__ import annotations

import logging
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream.torch as hvd  # noqa: E402
from slipstream.base.errors import Mismatch  # noqa: E402
from slipstream.faces.torch.gradients import _mark  # noqa: E402


def parameters(reverse: bool) -> list[tuple[str, Any]]:
    """Two of the same shape and dtype; rank 1 lists them the other way round if told so."""
    named = [(name, torch.nn.Parameter(torch.zeros(4, 4))) for name in ("a.weight", "b.weight")]
    return named[::-1] if reverse and hvd.rank() == 1 else named


def one_step(named: list[tuple[str, Any]], **options: Any) -> Any:
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD([p for _, p in named], lr=1.0), op=hvd.Sum, **options
    )
    by_name = dict(named)
    (by_name["a.weight"].sum() + 100 * by_name["b.weight"].sum()).backward()
    optimizer.step()
    return by_name


def check_other_names() -> None:
    named = [
        (f"{name}{hvd.rank()}" if name == "b.weight" else name, p) for name, p in parameters(reverse=True)
    ]
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD([p for _, p in named], lr=1.0), named_parameters=named
    )
    sum(p.sum() for _, p in named).backward()
    with pytest.raises(Mismatch) as caught:
        optimizer.step()
    assert "parameter 1 is b.weight0 (4, 4) float32 on rank 0 and b.weight1 (4, 4) float32 on rank 1" in str(
        caught.value
    )
    named = parameters(reverse=False)  # the job has not failed
    one_step(named, named_parameters=named)


def check_another_order() -> None:
    """Horovod matches parameters by name, too."""
    for groups in (None, 2):
        named = parameters(reverse=True)
        found = one_step(named, named_parameters=named, groups=groups)
        assert (found["a.weight"] == -hvd.size()).all()
        assert (found["b.weight"] == -100 * hvd.size()).all()


def check_same_order() -> None:
    for named_too in (True, False):
        named = parameters(reverse=False)
        found = one_step(named, named_parameters=named if named_too else None)
        assert (found["a.weight"] == -hvd.size()).all()
        assert (found["b.weight"] == -100 * hvd.size()).all()


def check_without_names() -> None:
    """Shapes are compared all the same."""
    shape = (4, 3) if hvd.rank() == 1 else (3, 4)
    parameter = torch.nn.Parameter(torch.zeros(shape))
    optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
    parameter.sum().backward()
    with pytest.raises(
        Mismatch, match=r"parameter 0 is without a name \(3, 4\) float32 on rank 0 and without a name"
    ):
        optimizer.step()


def check_another_order_without_names() -> None:
    """Equal shapes: the values that all ranks began with tell parameters apart."""
    torch.manual_seed(1)
    layers = [torch.nn.Parameter(torch.rand(4, 4)) for _ in range(3)]
    mine = layers if hvd.rank() == 0 else [layers[0], layers[2], layers[1]]
    optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(mine, lr=1.0))
    sum(p.sum() for p in mine).backward()
    with pytest.raises(
        Mismatch, match=r"parameter 1 of rank 0 has the values of parameter 2 of rank 1\. Give all"
    ):
        optimizer.step()
    for own in (layers, [torch.nn.Parameter(torch.rand(4, 4) + hvd.rank()) for _ in range(3)]):
        again: Any = hvd.DistributedOptimizer(torch.optim.SGD(own, lr=1.0))
        again.zero_grad()
        sum(p.sum() for p in own).backward()
        again.step()  # also where ranks begin with different values


def check_other_values() -> None:
    """Ranks that begin with different values train models of their own: rank 0 says so."""
    for differ in (True, False):
        own = hvd.rank() if differ else 0
        named = [("a", torch.nn.Parameter(torch.ones(3))), ("b", torch.nn.Parameter(torch.ones(2) + own))]
        optimizer: Any = hvd.DistributedOptimizer(
            torch.optim.SGD([p for _, p in named], lr=1.0), named_parameters=named
        )
        sum(p.sum() for _, p in named).backward()
        said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record, said=said: said.append(record.getMessage())  # type: ignore[method-assign,misc]
        log = logging.getLogger("slipstream.gradients")
        log.addHandler(handler)
        try:
            optimizer.step()
        finally:
            log.removeHandler(handler)
        wanted = "1 of 2 parameters begin with other values on rank 1 than on rank 0, the first of them b (2,) float32"
        assert [text.startswith(wanted) for text in said] == [True] * (differ and hvd.rank() == 0), said


def check_broadcast() -> None:
    shape = (4, 3) if hvd.rank() == 1 else (3, 4)  # as many elements
    state = {"fc.bias": torch.zeros(4), "fc.weight": torch.zeros(shape)}
    with pytest.raises(Mismatch) as caught:
        hvd.broadcast_parameters(state, root_rank=0)
    wanted = "parameter 1 is fc.weight (3, 4) float32 on rank 0 and fc.weight (4, 3) float32 on rank 1"
    assert wanted in str(caught.value)
    assert "fc.bias" not in str(caught.value)
    if hvd.rank() == 1:
        state["fc.extra"] = torch.zeros(1)
    state["fc.weight"] = torch.zeros(3, 4)
    with pytest.raises(Mismatch, match=r"missing on rank 0|fc\.extra"):
        hvd.broadcast_parameters(state, root_rank=0)


CHECKS = [
    check_other_names,
    check_another_order,
    check_another_order_without_names,
    check_same_order,
    check_without_names,
    check_other_values,
    check_broadcast,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_on_two_ranks(two: Any, check: Any) -> None:
    two(check)


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.bfloat16, torch.float64, torch.complex64])
def test_first_values_are_told_apart_whatever_their_type(dtype: Any) -> None:
    """0 and -0 are the same."""
    values = torch.tensor([0.0, 1.0, 2.0]).to(dtype)
    same, other = torch.tensor([-0.0, 1.0, 2.0]).to(dtype), torch.tensor([0.0, 1.0, -2.0]).to(dtype)
    assert _mark(values) == _mark(same) != _mark(other)
    assert _mark(values[:0]) == 0
