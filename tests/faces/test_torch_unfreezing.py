"""Layers that are frozen when a DistributedOptimizer is made, and unfrozen later."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream.torch as hvd  # noqa: E402
from faces import test_torch_optimizer as shared  # noqa: E402


def check_unfreezing() -> None:
    """A layer that requires gradients later is reduced from the next zero_grad() on; without one, an error says so."""
    for names in (False, True):
        model = shared.make_model()
        whole = copy.deepcopy(model)
        layers = list(model.children())
        frozen = list(layers[0].parameters())
        for param in frozen:
            param.requires_grad_(False)
        named = model.named_parameters() if names else None
        distributed = hvd.DistributedOptimizer(shared.sgd(model), named_parameters=named)
        single = shared.sgd(whole)
        for step in range(4):
            if step == 2:
                for param in frozen:
                    param.requires_grad_(True)
            distributed.zero_grad()
            single.zero_grad()
            x, y = shared.batch(step)
            shared.loss_of(model, shared.part(x), shared.part(y)).backward()
            shared.loss_of(whole, x, y).backward()
            if step < 2:
                for param in next(whole.children()).parameters():
                    param.grad = None
            distributed.step()
            single.step()
        shared.assert_same_models(model, whole)
        shared.assert_same_everywhere(model)
    model = shared.make_model()
    last = list(model.parameters())[-1].requires_grad_(False)
    distributed = hvd.DistributedOptimizer(shared.sgd(model), named_parameters=model.named_parameters())
    last.requires_grad_(True)
    x, y = shared.batch(0)
    shared.loss_of(model, shared.part(x), shared.part(y)).backward()
    with pytest.raises(
        RuntimeError, match=r"has a gradient that was not reduced.*zero_grad\(\) after requires_grad_"
    ):
        distributed.step()


def test_on_three_ranks(three: Any) -> None:
    three(check_unfreezing)
