"""The models have the published parameters, in the published order."""

from __future__ import annotations

import pytest
import torch

from slipstream.bench.train import models
from slipstream.bench.train.catalogue import FIGURES
from slipstream.bench.train.workloads import find_shapes

COUNTS = {"resnet50": 25_557_032, "vgg16": 138_357_544, "bert-base": 109_514_298, "gpt-small": 124_439_808}


def meta(name: str) -> torch.nn.Module:
    with torch.device("meta"):
        return models.make(name)[0]


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_as_many_parameters_as_published(name: str, count: int) -> None:
    assert sum(parameter.numel() for parameter in meta(name).parameters()) == count


def test_every_model_has_a_figure() -> None:
    assert set(models.MODELS) == set(FIGURES)
    assert all(figure.seconds > 0 and figure.batch > 0 for figure in FIGURES.values())


def test_bert_without_its_head_is_the_published_encoder() -> None:
    encoder = [p for name, p in meta("bert-base").named_parameters() if not name.startswith("head")]
    pooler = 768 * 768 + 768
    assert sum(parameter.numel() for parameter in encoder) + pooler == 109_482_240


def test_order_of_resnet() -> None:
    shapes = [tuple(parameter.shape) for parameter in meta("resnet50").parameters()]
    first_block = [
        (64, 64, 1, 1),
        (64,),
        (64,),
        (64, 64, 3, 3),
        (64,),
        (64,),
        (256, 64, 1, 1),
        (256,),
        (256,),
    ]
    assert shapes[:3] == [(64, 3, 7, 7), (64,), (64,)]
    assert shapes[3:12] == first_block
    assert shapes[12:15] == [(256, 64, 1, 1), (256,), (256,)]  # the shortcut
    assert shapes[-2:] == [(1000, 2048), (1000,)]
    assert len(shapes) == 161


def test_order_of_vgg() -> None:
    shapes = [tuple(parameter.shape) for parameter in meta("vgg16").parameters()]
    assert shapes[0] == (64, 3, 3, 3)
    assert shapes[-6:] == [(4096, 25088), (4096,), (4096, 4096), (4096,), (1000, 4096), (1000,)]


def test_the_output_matrix_of_text_models_is_the_embedding() -> None:
    for name, words in (("bert-base", 30522), ("gpt-small", 50257)):
        shapes = [tuple(parameter.shape) for parameter in meta(name).parameters()]
        assert [shape for shape in shapes if shape[0] == words and len(shape) == 2] == [(words, 768)]


def test_layers_are_called_in_the_order_of_the_network() -> None:
    names = [layer.name for layer in find_shapes("gpt-small").layers]
    assert names[:3] == ["words", "positions", "blocks.0.norm1"]
    assert names[-2:] == ["blocks.11.down", "norm"]
    shares = {layer.name: layer.share for layer in find_shapes("vgg16").layers}
    assert sum(shares.values()) == pytest.approx(1)
    heavy = [name for name, share in shares.items() if share > 0.1]
    assert heavy, "convolutions dominate"
    assert shares["layers.36"] < 0.001, "the last linear layer takes next to nothing"


def test_a_real_step() -> None:
    torch.manual_seed(0)
    module, inputs = models.make("tiny")
    module(*inputs(3)).mean().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def own() -> models.Model:
    return torch.nn.Linear(3, 2), lambda n: (torch.ones(n, 3),)


def test_a_model_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    given = types.ModuleType("given_models")
    given.own, given.half = own, torch.nn.Linear  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "given_models", given)
    module, inputs = models.make("given_models:own")
    assert module(*inputs(5)).shape == (5, 2)
    for name in ("given_models:none", "no_such_module:own", "alexnet"):
        with pytest.raises(ValueError, match=r"cannot be made|no model"):
            models.make(name)


def test_a_parameter_that_is_never_used_is_named() -> None:
    from slipstream.bench.train.delay import find_layers

    with torch.device("meta"):
        module = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 3), "idle": torch.nn.Linear(3, 3)})
        module.forward = lambda x: module["used"](x)  # type: ignore[method-assign, assignment]
        with pytest.raises(ValueError, match=r"idle\.weight, idle\.bias"):
            find_layers(module, lambda n: (torch.ones(n, 3),))
