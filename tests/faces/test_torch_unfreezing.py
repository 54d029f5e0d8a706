"""Layers that are frozen when a DistributedOptimizer is made, and unfrozen later."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream.torch as hvd  # noqa: E402
from faces import test_torch_optimizer as shared  # noqa: E402


def check_unfreezing(**options: Any) -> None:
    """Equal to one process, wherever gradients are cleared, and whether parameters have names."""
    for clears, named in ((True, False), (True, True), (False, True)):
        model = shared.make_model()
        whole = copy.deepcopy(model)
        frozen = list(next(model.children()).parameters())
        for param in frozen:
            param.requires_grad_(False)
        names = model.named_parameters() if named else None
        overlap = {"overlap_forward": model} if options.get("overlaps") else {}
        distributed = hvd.DistributedOptimizer(shared.sgd(model), names, **overlap)
        single = shared.sgd(whole)
        for step in range(5):
            for param in frozen if step == 2 else ():
                param.requires_grad_(True)
            if clears:
                distributed.zero_grad()
            single.zero_grad()
            x, y = shared.batch(step)
            shared.loss_of(model, shared.part(x), shared.part(y)).backward()
            shared.loss_of(whole, x, y).backward()
            for param in next(whole.children()).parameters() if step < 2 else ():
                param.grad = None
            distributed.step()
            single.step()
            if not clears and not overlap:
                model.zero_grad()
        distributed.settle()
        shared.assert_same_models(model, whole)
        shared.assert_same_everywhere(model)


def check_overlap() -> None:
    check_unfreezing(overlaps=True)


def check_adasum() -> None:
    """Models are equal on all ranks."""
    model = shared.make_model()
    frozen = list(next(model.children()).parameters())
    for param in frozen:
        param.requires_grad_(False)
    distributed = hvd.DistributedOptimizer(shared.sgd(model), model.named_parameters(), op=hvd.Adasum)
    before = copy.deepcopy(frozen)
    for step in range(4):
        for param in frozen if step == 2 else ():
            param.requires_grad_(True)
        distributed.zero_grad()
        x, y = shared.batch(step)
        shared.loss_of(model, shared.part(x), shared.part(y)).backward()
        distributed.step()
    assert not torch.equal(frozen[0], before[0])
    shared.assert_same_everywhere(model)


@pytest.mark.parametrize("check", [check_unfreezing, check_overlap, check_adasum])
def test_on_three_ranks(three: Any, check: Any) -> None:
    three(check)
