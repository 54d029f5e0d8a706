"""What a rank trains: a model whose compute is real, or a delay, ready to be replicated and checked.

Replicas share the memory of the parameters, so that several contenders fit into one process: each adds the buckets
of its wrapper alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from slipstream import comm
from slipstream.bench.train import models
from slipstream.bench.train.delay import Delay, DelayedModel, Layer, find_layers, ready_times
from slipstream.bench.train.pattern import GradientMemory, factor, mean_factor

__all__ = ["Delayed", "Real", "Shapes", "Workload", "find_shapes"]

_SAMPLE = 256  # elements of every gradient that real compute checks one by one
_ROUNDING = 1e-4  # relative: gradients are summed in another order


@dataclass(frozen=True)
class Shapes:
    """What is known of a model without giving it memory; buffers are on the ``meta`` device."""

    layers: list[Layer]
    parameters: list[torch.Size]
    buffers: list[tuple[str, Tensor]]

    def nbytes(self) -> list[int]:
        """Bytes of every parameter's gradient (float32)."""
        return [4 * shape.numel() for shape in self.parameters]

    def ready(self, seconds: float) -> list[tuple[float, int]]:
        """`ready_times` of this model."""
        return ready_times(self.layers, self.nbytes(), seconds)


def find_shapes(name: str) -> Shapes:
    """Looks at a model on the ``meta`` device; ValueError if it is unknown or not float32 throughout."""
    with torch.device("meta"):
        module, inputs = models.make(name)
        if any(p.dtype != torch.float32 for p in module.parameters()):
            raise ValueError(f"{name}: only models whose parameters are float32 can be measured")
        try:
            layers = find_layers(module, inputs)
        except (RuntimeError, NotImplementedError) as error:
            raise ValueError(f"{name} cannot be run on the device meta, without memory: {error}") from None
    return Shapes(layers, [p.shape for p in module.parameters()], list(module.named_buffers()))


class Workload(Protocol):
    """What contenders train. ``scratch``: memory of the size of all gradients, free between steps."""

    scratch: Tensor

    def replica(self) -> nn.Module:
        """A module of its own on the shared parameters."""

    def begin(self, step: int) -> None:
        """Called before every step; equal on all ranks."""

    def loss(self, module: nn.Module) -> Tensor:
        """Runs forward of a replica or its wrapper."""

    def learn(self, gradients: Sequence[Tensor | None]) -> None:
        """Collective: is shown a rank's own gradients, to know the average of all."""

    def wrong(self, gradients: Sequence[Tensor | None], averaged: bool, off: float = 0.0) -> int:
        """How many of the gradients of the last step are wrong; ``averaged`` over all ranks, or the rank's own.

        They may be off by this part of the largest gradient, beside rounding.
        """


class Delayed:
    """Compute replaced by a delay of ``seconds``. Every element of every gradient is checked."""

    def __init__(self, shapes: Shapes, seconds: float, device: torch.device) -> None:
        self._gradients = GradientMemory(shapes.parameters, device)
        self._delay = Delay(shapes.layers, seconds, self._gradients)
        # Memory that is never touched takes no place.
        self._parameters = [
            torch.from_numpy(np.zeros(shape, np.float32)).to(device) for shape in shapes.parameters
        ]
        self._buffers = [(name, torch.zeros_like(b, device=device)) for name, b in shapes.buffers]
        self._token = torch.zeros((), device=device)
        self._step = 0
        self.scratch = self._gradients.flat

    def replica(self) -> nn.Module:
        """A module of its own on the shared parameters."""
        return DelayedModel([nn.Parameter(p) for p in self._parameters], self._buffers, self._delay)

    def begin(self, step: int) -> None:
        """Writes the gradients of the step."""
        self._step = step
        self._delay.prepare(factor(comm.rank(), step))

    def loss(self, module: nn.Module) -> Tensor:
        """Waits for as long as forward takes."""
        result: Tensor = module(self._token)
        return result

    def learn(self, gradients: Sequence[Tensor | None]) -> None:
        """Nothing is to be learnt: the average is known."""

    def wrong(self, gradients: Sequence[Tensor | None], averaged: bool, off: float = 0.0) -> int:
        """Elements that are not the (average of the) pattern."""
        step = self._step
        expected = mean_factor(comm.size(), step) if averaged else factor(comm.rank(), step)
        return self._gradients.wrong(gradients, expected, off)


class Real:
    """Compute on the CPU: each rank the same parameters, and a batch of its own that stays the same.

    Checked against the ranks' own gradients, gathered once: some elements of every gradient one by one, and the
    sum of each gradient, as the sum of an average is the average of the sums.
    """

    def __init__(self, name: str, batch: int) -> None:
        torch.manual_seed(0)
        self._module, inputs = models.make(name)
        torch.manual_seed(1 + comm.rank())
        self._inputs = inputs(batch)
        self._step = 0
        self._own = self._mean = _Digest.empty()
        self.scratch = torch.zeros(sum(p.numel() for p in self._module.parameters()))

    def replica(self) -> nn.Module:
        """A copy of the module whose parameters are on the same memory."""
        shared = {id(p): nn.Parameter(p.detach()) for p in self._module.parameters()}
        return copy.deepcopy(self._module, shared)

    def begin(self, step: int) -> None:
        """Every step draws the same numbers, if the model draws any."""
        torch.manual_seed(1 + comm.rank())

    def loss(self, module: nn.Module) -> Tensor:
        """The mean loss of the rank's batch."""
        result: Tensor = module(*self._inputs)
        return result.mean()

    def learn(self, gradients: Sequence[Tensor | None]) -> None:
        """Gathers what the ranks' own gradients are like."""
        self._own = _Digest.of(gradients)
        self._mean = self._own.mean()

    def wrong(self, gradients: Sequence[Tensor | None], averaged: bool, off: float = 0.0) -> int:
        """Elements, and sums, that are off."""
        return _Digest.of(gradients).wrong(self._mean if averaged else self._own, off)


@dataclass(frozen=True)
class _Digest:
    """Of every gradient its first elements (float64, one after the other), sum, and sum of magnitudes."""

    sample: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    scale: np.ndarray[
        tuple[int, ...], np.dtype[np.float64]
    ]  # of sample: the largest of that gradient's elements
    sums: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    magnitudes: np.ndarray[tuple[int, ...], np.dtype[np.float64]]

    @staticmethod
    def empty() -> _Digest:
        return _Digest(*(np.zeros(0) for _ in range(4)))

    @staticmethod
    def of(gradients: Sequence[Tensor | None]) -> _Digest:
        flat = [torch.zeros(1) if g is None else g.detach().reshape(-1) for g in gradients]
        heads = [g[:_SAMPLE].double().numpy() for g in flat]
        return _Digest(
            np.concatenate(heads),
            np.concatenate([np.full(len(h), np.abs(h).max(initial=0.0)) for h in heads]),
            np.array([g.sum(dtype=torch.float64).item() for g in flat]),
            np.array([g.abs().sum(dtype=torch.float64).item() for g in flat]),
        )

    def mean(self) -> _Digest:
        """Over all ranks; scales and magnitudes are those before averaging, as rounding follows them."""
        parts = (self.sample, self.scale, self.sums, self.magnitudes)
        gathered = [np.asarray(comm.all_gather(part[None])) for part in parts]
        return _Digest(*(part.mean(axis=0) for part in gathered))

    def wrong(self, expected: _Digest, off: float) -> int:
        if self.sample.shape != expected.sample.shape:
            return max(len(self.sample), len(expected.sample))
        margin = _ROUNDING * expected.scale + off * expected.scale.max(initial=0.0)
        elements = np.abs(self.sample - expected.sample) <= margin
        sums = np.abs(self.sums - expected.sums) <= (math.inf if off else _ROUNDING * expected.magnitudes)
        return int(elements.size - elements.sum() + sums.size - sums.sum())
