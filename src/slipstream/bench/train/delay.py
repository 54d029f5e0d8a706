"""A model whose compute is a delay: the parameters and the order of the real one, and no work for the CPU.

The real model is run once on the ``meta`` device, which has shapes and no memory: that tells which layers are called
in which order and how many floating-point operations each takes. The delayed model then sleeps for each layer's
share of the time, backward twice as long as forward, and hands out gradients for the layer's parameters.

It sleeps until absolute deadlines, counted from the start of the forward pass: errors do not add up, and what
hooks do between two layers (copying into a bucket, say) takes nothing from the time left, just as a GPU goes on
meanwhile. The sleep releases the interpreter's lock. Gradients are written before the step begins: a GPU that
computes them takes no time of the CPU either.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from slipstream.bench.train.models import Inputs
from slipstream.bench.train.pattern import GradientMemory

__all__ = ["Delay", "DelayedModel", "Layer", "find_layers", "ready_times", "schedule"]

_FORWARD = 1 / 3  # of the time; backward takes twice as long


@dataclass(frozen=True)
class Layer:
    """One call of a module that has parameters of its own.

    ``share``: of all floating-point operations, those from this call to the next. ``parameters``: indices, in the order
    of registration, of the parameters that no earlier call has used: those whose gradients are ready when its
    backward is over.
    """

    name: str
    share: float
    parameters: tuple[int, ...]


def find_layers(module: nn.Module, inputs: Inputs) -> list[Layer]:
    """The layers of a module that lives on the ``meta`` device, in the order in which forward calls them.

    Raises ValueError when a parameter takes no part in forward.
    """
    index = {id(parameter): number for number, parameter in enumerate(module.parameters())}
    calls: list[tuple[str, float, tuple[int, ...]]] = []
    with FlopCounterMode(display=False) as counter:

        def called(name: str, owner: nn.Module) -> None:
            mine = {index.pop(id(p)) for p in owner.parameters(recurse=False) if id(p) in index}
            calls.append((name, counter.get_total_flops() if calls else 0, tuple(sorted(mine))))

        def hook(name: str) -> Any:
            return lambda owner, _: called(name, owner)

        handles = [
            owner.register_forward_pre_hook(hook(name))
            for name, owner in module.named_modules()
            if next(owner.parameters(recurse=False), None) is not None
        ]
        module(*inputs(2))
        total = counter.get_total_flops()
    for handle in handles:
        handle.remove()
    if index:
        names = [name for name, parameter in module.named_parameters() if id(parameter) in index]
        raise ValueError(f"parameters that take no part in forward: {', '.join(names)}")
    ends = [start for _, start, _ in calls[1:]] + [total]
    return [
        Layer(name, (end - start) / total if total else 1 / len(calls), parameters)
        for (name, start, parameters), end in zip(calls, ends, strict=True)
    ]


def schedule(shares: Sequence[float], seconds: float) -> tuple[list[float], list[float]]:
    """When, in seconds from the start, forward and backward of each layer end if all take ``seconds``."""
    forward, backward = [], [0.0] * len(shares)
    now = 0.0
    for share in shares:
        now += share * seconds * _FORWARD
        forward.append(now)
    for layer in reversed(range(len(shares))):
        now += shares[layer] * seconds * (1 - _FORWARD)
        backward[layer] = now
    return forward, backward


def ready_times(layers: Sequence[Layer], sizes: Sequence[int], seconds: float) -> list[tuple[float, int]]:
    """(time from the start in seconds, bytes) of the gradients of each layer, in the order of readiness.

    ``sizes``: bytes of every parameter's gradient.
    """
    _, backward = schedule([layer.share for layer in layers], seconds)
    ready = [
        (end, sum(sizes[p] for p in layer.parameters)) for end, layer in zip(backward, layers, strict=True)
    ]
    return [entry for entry in reversed(ready) if entry[1]]


class Delay:
    """The clock of the step under way, and the gradients it hands out; shared by all replicas of a rank."""

    def __init__(self, layers: Sequence[Layer], seconds: float, gradients: GradientMemory) -> None:
        self.layers = layers
        self._gradients = gradients
        self._forward, self._backward = schedule([layer.share for layer in layers], seconds)
        self._start = 0.0
        self._made: dict[int, Tensor] = {}

    def prepare(self, factor: float) -> None:
        """Writes the gradients of the next step, which are ``factor`` times the pattern."""
        used = (index for layer in self.layers for index in layer.parameters)
        self._made = {index: self._gradients.fill(index, factor) for index in used}

    def begin(self) -> None:
        """The forward pass starts now."""
        self._start = time.perf_counter()

    def order(self, layer: int) -> tuple[int, ...]:
        """The parameters of ``layer``, the last one first: a bias is ready before its weights."""
        return self.layers[layer].parameters[::-1]

    def forward(self, layer: int) -> None:
        """Waits until forward of ``layer`` is over."""
        self._wait(self._forward[layer])

    def backward(self, layer: int) -> list[Tensor]:
        """Waits until backward of ``layer`` is over; returns its gradients, as `order` has them."""
        self._wait(self._backward[layer])
        return [self._made.pop(index) for index in self.order(layer)]

    def _wait(self, end: float) -> None:
        """Until ``end`` seconds from the start."""
        left = self._start + end - time.perf_counter()
        if left > 0:
            time.sleep(left)


class _Pass(torch.autograd.Function):
    """One layer: nothing is computed, but autograd sees its parameters."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, delay: Delay, layer: int, *parameters: Tensor) -> Tensor:
        ctx.delay, ctx.layer = delay, layer
        delay.forward(layer)
        return token.clone()

    @staticmethod
    def backward(ctx: Any, *tokens: Any) -> Any:
        # Nothing else refers to these tensors, so autograd takes them for .grad as they are, without a copy.
        return tokens[0], None, None, *ctx.delay.backward(ctx.layer)


class DelayedModel(nn.Module):
    """Parameters and buffers of a model in their order, and ``delay`` in place of its compute.

    The buffers are there because DDP broadcasts them before each forward pass.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], buffers: Sequence[tuple[str, Tensor]], delay: Delay
    ) -> None:
        super().__init__()
        self.weights = nn.ParameterList(parameters)
        for name, buffer in buffers:
            self.register_buffer(name.replace(".", "_"), buffer.clone())
        self._delay = delay

    def forward(self, token: Tensor) -> Tensor:
        """Returns ``token`` (any shape) after the time of the forward pass; backward takes its own time."""
        self._delay.begin()
        token = token.detach().requires_grad_()
        for layer in range(len(self._delay.layers)):
            mine = (self.weights[p] for p in self._delay.order(layer))
            token = _Pass.apply(token, self._delay, layer, *mine)  # type: ignore[no-untyped-call]
        return token
