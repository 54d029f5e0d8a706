"""Batch normalisation with the statistics of all ranks' batches together."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from slipstream.comm.collectives.interruption import found_by_all
from slipstream.comm.membership.group import Group
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Sum
from slipstream.faces.torch import starting

__all__ = ["SyncBatchNorm"]


class _Layers:
    """The layers of one group, numbered by their first forward pass there, which all ranks make in one order."""

    def __init__(self) -> None:
        self.numbers: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()
        self.free = itertools.count()


_layers: weakref.WeakKeyDictionary[Group, _Layers] = weakref.WeakKeyDictionary()  # a new job has new groups


def _number_of(layer: torch.nn.Module, group: Group) -> int:
    known = _layers.setdefault(group, _Layers())
    number = known.numbers.get(layer)
    if number is None:
        number = known.numbers[layer] = next(known.free)
    return number


class SyncBatchNorm(_BatchNorm):
    """`torch.nn.BatchNorm1d` to `3d`, over the batches of all ranks as if they were one.

    Input and output: (batch, ``num_features``, ...), two dimensions or more, on any device. Batches may differ in size,
    and some may be empty. float16 and bfloat16 are normalised in float32. ``process_set``: the ranks that share
    statistics. The other arguments are those of PyTorch's layers. In training all ranks of the set call it, and call
    backward, in the same order of layers; without running statistics also in evaluation. Each rank's gradients
    of weight and bias are those of its own batch, for `DistributedOptimizer` to reduce. Raises ValueError for inputs
    that do not fit, and if all batches together have one value of each feature.

    >>> norm = hvd.SyncBatchNorm(1)
    >>> norm(torch.full((1, 1), float(hvd.rank()))).round().tolist()  # on rank 0
    [[-1.0]]
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """The module with layers of this class, which share parameters and statistics, for its BatchNorm layers.

        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        >>> type(hvd.SyncBatchNorm.convert_sync_batchnorm(model)[1]).__name__
        'SyncBatchNorm'
        """
        return cls._converted(module, process_set, {})

    @classmethod
    def _converted(
        cls, module: torch.nn.Module, process_set: ProcessSet, known: dict[int, torch.nn.Module]
    ) -> torch.nn.Module:
        """``known``: what has become of modules, by id: a model may use one in several places."""
        if id(module) in known:
            return known[id(module)]
        made = known[id(module)] = module
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            momentum, tracks = module.momentum, module.track_running_stats
            made = cls(module.num_features, module.eps, momentum, module.affine, tracks, process_set)
            made._parameters, made._buffers = module._parameters, module._buffers
            made.training = module.training
            known[id(module)] = made
        for name, child in module._modules.items():
            if child is not None:
                made._modules[name] = cls._converted(child, process_set, known)
        return made

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
        if input.shape[1] != self.num_features:
            raise ValueError(f"expected {self.num_features} features in dimension 1, got {input.shape[1]}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the normalised input."""
        self._check_input_dim(input)
        share = self.momentum
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if share is None:
                share = 1.0 / float(self.num_batches_tracked)
        by_batch = self.training or self.running_mean is None
        # PyTorch forgets the statistics of evaluation
        running = (self.running_mean, self.running_var) if self.training or not by_batch else (None, None)
        alone = not self.process_set.included() or self.process_set.group.size == 1
        if not by_batch or alone:
            return F.batch_norm(input, *running, self.weight, self.bias, by_batch, share or 0.0, self.eps)
        label = f"sync_batch_norm.{_number_of(self, self.process_set.group)}"
        return _Normalize.apply(  # type: ignore[no-untyped-call, no-any-return]
            input, self.weight, self.bias, *running, self.eps, share or 0.0, label, self.process_set
        )


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        eps: float,
        share: float,
        label: str,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        """Returns the normalised rows of this rank."""
        wide = x.to(_computed_in(x.dtype))
        count, mean, squares = _statistics_of_all(wide, label, process_set)
        variance = squares / count
        if running_mean is not None and running_var is not None:
            running_mean.lerp_(mean.to(running_mean), share)
            running_var.lerp_((squares / (count - 1)).to(running_var), share)
        inverse = torch.rsqrt(variance + eps)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.count, ctx.label, ctx.process_set = count, label, process_set
        ctx.bias_dtype = None if bias is None else bias.dtype
        factor = inverse if weight is None else inverse * weight.to(inverse)
        y = (wide - _as_channels(mean, wide)) * _as_channels(factor, wide)
        if bias is not None:
            y += _as_channels(bias, wide)
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Returns the gradients of the input, and those of weight and bias by the rows of this rank."""
        x, weight, mean, inverse = ctx.saved_tensors
        wide = grad.to(_computed_in(x.dtype))
        centred = (x.to(wide.dtype) - _as_channels(mean, wide)) * _as_channels(inverse, wide)
        sums = torch.stack([_sum_of_channels(wide), _sum_of_channels(wide * centred)])
        own_bias, own_weight = sums
        of_x = None
        if ctx.needs_input_grad[0]:
            everyone = sums.to(torch.float64)
            everyone = starting.all_reduce(
                everyone, False, f"{ctx.label}.gradients", Sum, 1.0, 1.0, ctx.process_set, sync=True
            ).wait()
            shift, slope = everyone / ctx.count
            factor = inverse if weight is None else inverse * weight.to(inverse)
            of_x = wide - _as_channels(shift, wide) - centred * _as_channels(slope, wide)
            of_x = (of_x * _as_channels(factor, wide)).to(x.dtype)
        of_weight = own_weight.to(weight) if weight is not None and ctx.needs_input_grad[1] else None
        of_bias = own_bias.to(grad.device, ctx.bias_dtype) if ctx.needs_input_grad[2] else None
        return of_x, of_weight, of_bias, None, None, None, None, None, None


def _computed_in(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _as_channels(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A value of each feature, in a form that multiplies ``like``."""
    return values.to(like).view(1, -1, *[1] * (like.dim() - 2))


def _sum_of_channels(x: torch.Tensor) -> torch.Tensor:
    return x.sum([dim for dim in range(x.dim()) if dim != 1])


def _statistics_of_all(
    x: torch.Tensor, label: str, process_set: ProcessSet
) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Of all ranks' rows: how many values each feature has, their mean, and the sum of squares around it, in float64.

    ValueError on all ranks if there are fewer than two values.
    """
    features = x.shape[1]
    count = x.numel() // features if features else 0
    own = torch.zeros((1, 1 + 2 * features), dtype=torch.float64, device="cpu")
    if count:
        mean = _sum_of_channels(x) / count
        own[0, 0] = count
        own[0, 1 : features + 1] = mean
        own[0, features + 1 :] = _sum_of_channels((x - _as_channels(mean, x)) ** 2)
    table = starting.all_gather(own, f"{label}.statistics", process_set).wait()
    counts, means, squares = table[:, :1], table[:, 1 : features + 1], table[:, features + 1 :]
    total = float(counts.sum())
    if total < 2:
        raise found_by_all(
            ValueError(f"Expected more than 1 value per channel when training, got {int(total)} on all ranks")
        )
    mean = (counts * means).sum(0) / total
    return total, mean, squares.sum(0) + (counts * (means - mean) ** 2).sum(0)
