"""Gradients that are cheap to make, differ by rank, step and place, and whose average is known.

Element e of parameter p on rank r in step s is ``tile[(e + phase(p)) % PERIOD] * factor(r, s)``. The tile holds whole
numbers, so that their sums are exact. PERIOD is prime and the tile random: a value that lands anywhere but in its
place is not the one expected there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["PERIOD", "GradientMemory", "count_wrong", "factor", "mean_factor"]

PERIOD = 16381  # 64 KiB of float32: it stays in the cache while gradients are filled and checked
_TOLERANCE = 1e-5  # relative: averages are rounded once per rank
_ROWS = 64  # of the tile, checked at a time: 4 MiB
_ALIGNMENT = 16  # elements: every gradient begins on a cache line


def _tile(device: torch.device) -> Tensor:
    """Two periods, so that one can be cut out at any phase."""
    values = torch.randint(1, 256, (PERIOD,), generator=torch.Generator().manual_seed(1)).float()
    return torch.cat([values, values]).to(device)


def factor(rank: int, step: int) -> int:
    """By what a rank multiplies the tile in a step; steps that follow each other differ."""
    return (rank + 1) * (1 + step % 7)


def mean_factor(ranks: int, step: int) -> float:
    """The mean of `factor` over all ranks."""
    return (ranks + 1) / 2 * (1 + step % 7)


class GradientMemory:
    """The memory of all gradients of a model (float32), filled again in every step."""

    def __init__(self, shapes: Sequence[torch.Size], device: torch.device) -> None:
        sizes = [shape.numel() for shape in shapes]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
        self.flat = torch.zeros(starts[-1], device=device)
        self._places = list(zip(starts, sizes, shapes, strict=False))
        tile = _tile(device)
        self._rows = [tile[phase : phase + PERIOD] for phase in map(_phase, range(len(sizes)))]

    def fill(self, index: int, factor: float) -> Tensor:
        """The gradient of parameter ``index``: a new tensor of its shape on the same memory as always."""
        start, size, shape = self._places[index]
        flat, row = self.flat[start : start + size], self._rows[index]
        whole = size // PERIOD * PERIOD
        rows = flat[:whole].view(whole // PERIOD, PERIOD)
        torch.mul(row.expand_as(rows), factor, out=rows)
        torch.mul(row[: size - whole], factor, out=flat[whole:])
        return flat.view(shape)

    def wrong(self, gradients: Sequence[Tensor | None], factor: float, off: float = 0.0) -> int:
        """How many elements of the gradients of all parameters are not what `fill` makes with ``factor``.

        They may be off by this part of the largest gradient, beside rounding.
        """
        total = 0
        for gradient, row, (_, size, shape) in zip(gradients, self._rows, self._places, strict=True):
            if gradient is None or gradient.shape != shape:
                total += size
            else:
                total += count_wrong(gradient.detach().reshape(-1), row * factor, off)
        return total


def _phase(index: int) -> int:
    return index * 7919 % PERIOD


def count_wrong(values: Tensor, row: Tensor, off: float = 0.0) -> int:
    """How many elements of ``values`` (n,) differ from ``row`` (PERIOD,), repeated, by more than rounding.

    ``off``: see `GradientMemory.wrong`.
    """
    margin = row.abs() * _TOLERANCE + off * row.abs().max()
    whole = values.numel() // PERIOD * PERIOD
    good = 0
    for rows in torch.split(values[:whole].view(whole // PERIOD, PERIOD), _ROWS):
        good += int((rows.sub(row).abs_() <= margin).sum())  # NaN is not below anything
    rest = values.numel() - whole
    good += int((values[whole:].sub(row[:rest]).abs_() <= margin[:rest]).sum())
    return values.numel() - good
