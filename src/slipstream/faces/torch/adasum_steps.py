"""`DistributedOptimizer` with ``op=Adasum``: each rank steps on its own, and the changes are reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any

import torch

from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.horovod.words import adding_words
from slipstream.faces.torch.adasum import check_adasum, vectors_of
from slipstream.faces.torch.parameters import in_order, unfrozen
from slipstream.faces.torch_tensors import describe
from slipstream.gradients.changes import ChangeExchange
from slipstream.gradients.compression import Cast, Way

__all__ = ["AdasumSteps", "check_plain"]


def check_plain(compressor: Any, way: Way | None, exact: Any, overlap_forward: Any) -> None:
    """ValueError for options of `DistributedOptimizer` that Adasum does not have."""
    if compressor is None and way is not None and not isinstance(way, Cast):
        raise ValueError(
            f"op=Adasum takes Compression.none, fp16, bf16 or a Compressor of your own, not {way}"
        )
    for name, value in (("exact", exact), ("overlap_forward", overlap_forward)):
        if value is not None:
            raise ValueError(
                f"{name} is not for op=Adasum, which reduces changes of parameters after the step"
            )


class AdasumSteps:
    """Comes before the classes that `DistributedOptimizer` makes of the user's optimizer."""

    param_groups: list[dict[str, Any]]
    _settings: dict[str, Any]
    _changes: _Changes | None = None

    def _watch(self) -> None:
        """Takes over the parameters that there are now."""
        self._changes = None
        process_set: ProcessSet = self._settings["process_set"]
        if any(group.get("wire") is not None for group in self.param_groups):
            raise ValueError('parameter groups with a "wire" are not for op=Adasum: use compression=')
        if process_set.included() and process_set.group.size > 1:
            params, names = in_order(self.param_groups, self._settings["names"])
            self._changes = _Changes(params, names, self._settings["compression"], process_set)

    def synchronize(self) -> None:
        """Does nothing: gradients are not reduced, but what `step` changes."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raises AssertionError: there is nothing to skip."""
        raise AssertionError(
            "Skipping synchronization is not supported when using Adasum optimizer: gradients are this rank's own "
            "until step(), so change them before it, without synchronize()"
        )
        yield

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps on this rank's gradients, then puts what Adasum makes of all ranks' changes in place of its own."""
        step: Callable[..., Any] = super().step  # type: ignore[misc]
        if self._changes is None:
            return step(closure)
        if unfrozen(self.param_groups, set(map(id, self._changes.params))):
            self._watch()
        self._changes.begin()
        result = step(closure)
        with adding_words():
            self._changes.exchange()
        return result


# Without this mark Optimizer.__setstate__ would wrap this step too, and hooks around steps would run twice.
AdasumSteps.step.hooked = True  # type: ignore[attr-defined]


class _Changes:
    """What a step changes in parameters, as vectors that travel."""

    def __init__(
        self,
        params: Sequence[torch.Tensor],
        names: Sequence[str] | None,
        compression: Any,
        process_set: ProcessSet,
    ) -> None:
        self.params = params
        self._compression = compression
        self._before: list[torch.Tensor] = []
        self._views: dict[int, torch.Tensor] = {}
        numbers: dict[torch.dtype, list[int]] = {}
        for number, param in enumerate(params):
            sent = compression.compress(torch.empty(0, dtype=param.dtype, device="cpu"))[0].dtype
            check_adasum(sent)
            numbers.setdefault(sent, []).append(number)
        vectors = []
        for dtype, chosen in numbers.items():
            flat, found = vectors_of([params[number].numel() for number in chosen], dtype)
            vectors.append(found)
            for number, (low, high) in zip(
                chosen, pairwise(accumulate(found.counts, initial=0)), strict=True
            ):
                self._views[number] = flat[low:high].view(params[number].shape)
        known = names or [""] * len(params)
        sent = [str(self._views[number].dtype).removeprefix("torch.") for number in range(len(params))]
        described = [
            f"{describe(name, param)} (its change, op=Adasum, as {sent[number]})"
            for number, (name, param) in enumerate(zip(known, params, strict=True))
        ]
        self._exchange = ChangeExchange(vectors, described, lambda: process_set.group)

    def begin(self) -> None:
        """Takes note of the parameters before a step."""
        self._before = [param.detach().clone() for param in self.params]

    @torch.no_grad()
    def exchange(self) -> None:
        """Changes the parameters as all ranks' steps together say; if that fails, not at all."""
        contexts = []
        for number, (param, before) in enumerate(zip(self.params, self._before, strict=True)):
            small, context = self._compression.compress(param.detach() - before)
            self._views[number].copy_(small)
            contexts.append(context)
        try:
            self._exchange.reduce()
            for number, (before, context) in enumerate(zip(self._before, contexts, strict=True)):
                before += self._compression.decompress(self._views[number], context).to(before.device)
        finally:
            for param, before in zip(self.params, self._before, strict=True):
                param.copy_(before)
            self._before = []
