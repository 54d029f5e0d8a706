"""All-reduce with ``op=Adasum``: tensors of one dtype lie side by side while they are reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch

from slipstream.base.arguments import as_number
from slipstream.base.dtypes import DType
from slipstream.comm.collectives.adasum import DTYPES, Vectors
from slipstream.comm.collectives.adasum_line import start_adasum
from slipstream.comm.collectives.interruption import Together
from slipstream.faces.horovod.handles import Grouped, PendingResult
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.torch_tensors import CODES, await_tensor, check_dense, copy_back, new_tensor, write_back

__all__ = ["check_adasum", "start_adasum_of", "start_adasum_of_each", "vectors_of"]


def check_adasum(dtype: torch.dtype) -> None:
    """ValueError unless tensors of this dtype can be reduced so."""
    if CODES.get(dtype) not in DTYPES:
        name = str(dtype).removeprefix("torch.")
        raise ValueError(
            f"Adasum takes tensors of float64, float32, float16 and bfloat16, not {name}: use op=hvd.Sum"
        )


def vectors_of(counts: Sequence[int], dtype: torch.dtype) -> tuple[torch.Tensor, Vectors]:
    """A flat tensor for as many numbers, and its memory as vectors of ``counts`` numbers."""
    flat = new_tensor((sum(counts),), dtype)
    return flat, Vectors(flat.view(torch.uint8).numpy(), DType(CODES[dtype]), tuple(counts))


def start_adasum_of(
    tensor: torch.Tensor,
    in_place: bool,
    label: str,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> PendingResult:
    """Starts it for one tensor; the result is ``tensor`` itself or a new one of its shape."""
    pending = _start([tensor], in_place, label, prescale, postscale, process_set)
    pending.result = pending.result[0]
    return pending


def start_adasum_of_each(
    tensors: Sequence[torch.Tensor],
    in_place: bool,
    label: str,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Grouped:
    """Starts it for several tensors, each by itself; the result is the list of theirs."""
    numbers: dict[torch.dtype, list[int]] = {}
    for number, tensor in enumerate(tensors):
        check_adasum(tensor.dtype)
        check_dense(tensor)
        numbers.setdefault(tensor.dtype, []).append(number)
    with Together(process_set.group, "grouped_allreduce"):
        parts = [
            _start([tensors[i] for i in chosen], in_place, label, prescale, postscale, process_set)
            for chosen in numbers.values()
        ]
    places = [number for chosen in numbers.values() for number in chosen]

    def collect(results: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        found = dict(zip(places, (one for result in results for one in result), strict=True))
        return [found[number] for number in range(len(tensors))]

    return Grouped(parts, collect)


def _start(
    tensors: Sequence[torch.Tensor],
    in_place: bool,
    label: str,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> PendingResult:
    """All of one dtype."""
    dtype, group = tensors[0].dtype, process_set.group
    check_adasum(dtype)
    for tensor in tensors:
        check_dense(tensor)
    before = as_number("prescale_factor", prescale)
    after = as_number("postscale_factor", postscale)
    flat, vectors = vectors_of([tensor.numel() for tensor in tensors], dtype)
    bounds = pairwise(accumulate(vectors.counts, initial=0))
    views = [flat[low:high].view(tensor.shape) for tensor, (low, high) in zip(tensors, bounds, strict=True)]
    for tensor, view in zip(tensors, views, strict=True):
        await_tensor(group, "allreduce", tensor, writes=in_place)
        view.copy_(tensor.detach())
    if before != 1.0:
        flat.mul_(before)
    results = list(tensors) if in_place else [_result(*one) for one in zip(tensors, views, strict=True)]
    finish: Callable[[], None] = _Finish(flat, after, results, views)
    landing = None
    if in_place:
        finish = landing = copy_back(group, "allreduce", tensors, finish)
    work = start_adasum(group, vectors, f"{label}, factors {before!r} and {after!r}", landing)
    return PendingResult(work, results, finish)


def _result(tensor: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    return view if tensor.is_cpu else torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


class _Finish:
    """Scales what has been reduced, and copies it to where it belongs.

    If a signal's handler breaks it off, it can be called again.
    """

    __slots__ = ("_factor", "_flat", "_scaled", "_targets", "_views")

    def __init__(
        self,
        flat: torch.Tensor,
        factor: float,
        targets: Sequence[torch.Tensor],
        views: Sequence[torch.Tensor],
    ) -> None:
        self._flat = flat
        self._factor = factor
        self._scaled: torch.Tensor | None = None
        self._targets = targets
        self._views = views

    def __call__(self) -> None:
        if self._factor != 1.0:
            if self._scaled is None:
                self._scaled = self._flat * self._factor  # once: what has been reduced is overwritten next
            self._flat.copy_(self._scaled)
        for target, view in zip(self._targets, self._views, strict=True):
            if target is not view:
                write_back(target, view)
