"""The delayed model: the order and the values of its gradients, and whose memory they are in."""

from __future__ import annotations

import itertools

import pytest
import torch

from slipstream.bench.train import models
from slipstream.bench.train.delay import Delay, DelayedModel, Layer, find_layers, ready_times, schedule
from slipstream.bench.train.pattern import PERIOD, GradientMemory, count_wrong, factor, mean_factor

SHAPES = [torch.Size(shape) for shape in ((3, PERIOD), (7,), (), (2, 3 * PERIOD + 5))]
CPU = torch.device("cpu")


def readiness(module: torch.nn.Module, loss: torch.Tensor) -> list[int]:
    order: list[int] = []
    for number, parameter in enumerate(module.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda _, number=number: order.append(number))
    loss.backward()
    return order


def delayed(name: str) -> tuple[DelayedModel, list[Layer], GradientMemory]:
    with torch.device("meta"):
        module, inputs = models.make(name)
        layers = find_layers(module, inputs)
    shapes = [parameter.shape for parameter in module.parameters()]
    gradients = GradientMemory(shapes, CPU)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    delay = Delay(layers, 0.0, gradients)
    delay.prepare(1.0)
    return DelayedModel(parameters, [], delay), layers, gradients


def test_gradients_are_ready_layer_by_layer_from_the_end() -> None:
    module, layers, _ = delayed("resnet50")
    order = readiness(module, module(torch.zeros(())))
    expected = [sorted(layer.parameters) for layer in reversed(layers)]
    place = iter(order)
    assert [sorted(itertools.islice(place, len(each))) for each in expected] == expected
    assert len(order) == 161


def test_they_are_ready_in_the_order_of_the_real_model() -> None:
    module, layers, _ = delayed("tiny")
    torch.manual_seed(0)
    real, inputs = models.make("tiny")
    layer_of = {parameter: number for number, layer in enumerate(layers) for parameter in layer.parameters}

    def by_layer(order: list[int]) -> list[int]:
        return [key for key, _ in itertools.groupby(order, key=layer_of.__getitem__)]

    ours = by_layer(readiness(module, module(torch.zeros(()))))
    # Both embeddings of the real model end together, in no order that means anything.
    theirs = by_layer(readiness(real, real(*inputs(2)).mean()))
    assert ours[:-2] == theirs[:-2]
    assert sorted(ours) == sorted(theirs)


def test_gradients_are_the_pattern_and_stay_in_their_memory() -> None:
    module, _, gradients = delayed("tiny")
    low = gradients.flat.data_ptr()
    high = low + 4 * gradients.flat.numel()
    for number in (3.0, 4.0):
        module._delay.prepare(number)
        for parameter in module.parameters():
            parameter.grad = None
        module(torch.zeros(())).backward()
        found = [parameter.grad for parameter in module.parameters()]
        assert gradients.wrong(found, number) == 0
        assert gradients.wrong(found, number + 1) == 28_032
        assert all(low <= one.data_ptr() < high for one in found if one is not None), "autograd has copied"


def test_the_average_of_all_ranks_is_known() -> None:
    ranks, step = 3, 5
    each = [GradientMemory(SHAPES, CPU) for _ in range(ranks)]
    made = [
        [memory.fill(index, factor(rank, step)) for index in range(len(SHAPES))]
        for rank, memory in enumerate(each)
    ]
    averages = [torch.stack(parts).mean(0) for parts in zip(*made, strict=True)]
    assert each[0].wrong(averages, mean_factor(ranks, step)) == 0
    assert each[0].wrong(averages, mean_factor(ranks, step + 1)) == sum(shape.numel() for shape in SHAPES)


@pytest.mark.parametrize("at", [0, PERIOD - 1, 2 * PERIOD, 6 * PERIOD + 9])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_one_wrong_element_is_found_wherever_it_is(at: int, value: float) -> None:
    memory = GradientMemory(SHAPES, CPU)
    made = [memory.fill(index, 2.0).clone() for index in range(len(SHAPES))]
    made[3].view(-1)[at] = value
    assert memory.wrong(made, 2.0) == 1


def test_what_is_in_another_place_is_wrong() -> None:
    memory = GradientMemory(SHAPES, CPU)
    made = [memory.fill(index, 1.0).clone() for index in range(len(SHAPES))]
    rolled = [*made[:3], made[3].roll(1024)]
    assert memory.wrong(rolled, 1.0) > 0.9 * made[3].numel()
    assert memory.wrong([None, *made[1:]], 1.0) == made[0].numel()
    assert count_wrong(torch.zeros(0), torch.ones(PERIOD)) == 0
    row = torch.linspace(-1, 1, PERIOD)
    assert count_wrong(row + 0.009, row, off=0.01) == 0
    assert count_wrong(row + 0.011, row, off=0.01) == PERIOD
    assert count_wrong(row + 0.009, row) == PERIOD


def test_forward_takes_a_third_and_backward_goes_back() -> None:
    forward, backward = schedule([0.5, 0.0, 0.5], 0.9)
    assert forward == pytest.approx([0.15, 0.15, 0.3])
    assert backward == pytest.approx([0.9, 0.6, 0.6])


def test_ready_times_leave_out_layers_without_parameters() -> None:
    layers = [Layer("a", 0.5, (0, 1)), Layer("b", 0.25, ()), Layer("c", 0.25, (2,))]
    assert ready_times(layers, [8, 4, 100], 3.0) == [(pytest.approx(1.5), 100), (pytest.approx(3.0), 12)]
