"""The exchange of gradients: hooks that fire in backward fill buckets, and full buckets travel while backward
goes on.

All ranks must launch the same buckets in the same order, and nobody negotiates. So the order is fixed:
buckets are cut from one list of the parameters, equal on all ranks, and a bucket is launched when it and all
before it are full. The first step only watches: it sends nothing until backward is over, and then all ranks
take over the order in which rank 0's gradients became ready. Parameters without a gradient on this rank take
part with zeros, at the end.
"""

from __future__ import annotations

import sys
import threading
import weakref
import zlib
from collections.abc import Callable, Sequence

import torch

from slipstream.comm import raw
from slipstream.comm.together import Together
from slipstream.faces.torch.agreement import check_agreement, description
from slipstream.faces.torch.buckets import Bucket, Cell, cut
from slipstream.faces.torch.compression import CastCompressor, Compression, Compressor
from slipstream.faces.torch.exchanges import start_broadcast
from slipstream.faces.torch.operations import sparse_allreduce_async
from slipstream.faces.torch.process_sets import ProcessSet
from slipstream.faces.torch.reductions import Average, Max, engine_op, start_all_reduce
from slipstream.faces.torch_tensors import dtype_code

__all__ = ["GradientExchange"]


_MOST_SHOWN = 5  # parameters in the name of a bucket


def _own_references() -> int:
    holder = [object()]
    held = holder[0]
    return sys.getrefcount(held)


_OWN_REFERENCES = _own_references()
"""What getrefcount says of an object that one list and one variable hold; interpreters count differently."""


class GradientExchange:
    """Reduces the gradients of some parameters over a process set, again and again.

    ``passes`` backward passes are accumulated before a gradient is ready. ``groups`` lists parameters (by
    index) that share a bucket. ``names`` are the parameters' (None: they have none).
    Hooks run in the threads that run backward; `synchronize` in the caller's.
    """

    def __init__(
        self,
        params: Sequence[torch.Tensor],
        *,
        names: Sequence[str] | None,
        compression: type[Compressor],
        op: int,
        predivide: float,
        passes: int,
        groups: Sequence[Sequence[int]],
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.params = list(params)
        self._names = None if names is None else list(names)
        self.passes = passes
        self.touched = False
        self._compression = compression
        self._op = op
        self._scales = (1.0 / predivide, predivide) if op == Average else (1.0, 1.0)
        self._groups = groups
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self._left = [passes] * len(self.params)
        self._order: list[int] = []
        self._buckets: list[Bucket] | None = None
        self._place: dict[int, tuple[Bucket, int]] = {}
        self._sparse: list[int] = []
        self._next = 0
        self._full: set[int] = set()
        self._contexts: dict[int, object] = {}
        self._lock = threading.Lock()
        self._hooks = []
        for index, param in enumerate(self.params):
            hook = param.register_post_accumulate_grad_hook(_hook(self, index))  # type: ignore[no-untyped-call]
            self._hooks.append(hook)

    def detach(self) -> None:
        """Takes the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()

    def set_passes(self, passes: int) -> None:
        """From now on ``passes`` backward passes make a gradient."""
        self.passes = passes
        self._left = [passes] * len(self.params)

    def reset(self) -> None:
        """Waits for what is under way and forgets it: the next backward begins a new step."""
        for bucket in self._buckets or []:
            if bucket.work is not None:
                bucket.work.wait()
        self._begin()

    def ready(self, index: int) -> None:
        """A parameter's gradient has been accumulated once more (called by its hook)."""
        with self._lock:
            if self._left[index] <= 0:
                raise AssertionError(
                    "Gradients were computed more than backward_passes_per_step times before call to step(). "
                    "Increase backward_passes_per_step to accumulate gradients locally."
                )
            self.touched = True
            self._left[index] -= 1
            if self._left[index]:
                return
            if self._buckets is None:
                self._order.append(index)
            elif index in self._place:
                self._fill(index)
                self._launch()

    def synchronize(self) -> None:
        """Completes the step: every parameter has the reduced gradient afterwards. Every rank calls it.

        Raises SlipstreamError when a rank is lost, Mismatch when ranks have different parameters.
        """
        with self._lock:
            try:
                with Together(self._process_set.group, "the exchange of gradients"):
                    self._complete()
            finally:
                self._begin()

    def _complete(self) -> None:
        if self._buckets is None:
            self._learn()
        for index in self._place:
            if index not in self._full:
                self._fill(index)
        self._launch()
        sparse = [(index, self._start_sparse(index)) for index in self._sparse]
        for bucket in self._buckets or []:
            bucket.work.wait()
            self._finish(bucket)
        for index, finish in sparse:
            self.params[index].grad = finish().to(self.params[index].dtype)

    def _begin(self) -> None:
        self._left = [self.passes] * len(self.params)
        self._order.clear()
        self._full.clear()
        self._contexts.clear()
        self._next = 0
        self.touched = False
        for bucket in self._buckets or []:
            bucket.waiting = len(bucket.cells)
            bucket.work = None

    def _learn(self) -> None:
        """After the first backward: agree on the order and on which gradients are sparse, and cut the
        buckets.
        """
        count = len(self.params)
        seen = set(self._order)
        order = self._order + [index for index in reversed(range(count)) if index not in seen]
        sparse = [p.grad is not None and p.grad.is_sparse and not self._sparse_as_dense for p in self.params]
        names = self._names or [""] * count
        mine = [description(name, p) for name, p in zip(names, self.params, strict=True)]
        check_agreement("optimise", mine, self._process_set)
        flags = torch.tensor(sparse, dtype=torch.bool)
        start_all_reduce(flags, True, None, Max, 1.0, 1.0, self._process_set, sync=True).wait()
        agreed = torch.tensor(order, dtype=torch.int64)
        root = self._process_set.group.ranks[0]
        start_broadcast(agreed, True, root, None, self._process_set, sync=True).wait()
        self._sparse = [index for index, flag in enumerate(flags.tolist()) if flag]
        self._build([index for index in agreed.tolist() if not flags[index]])

    def _build(self, order: Sequence[int]) -> None:
        cells = [Cell(index, self.params[index].shape, self._wire(index)) for index in order]
        self._buckets = [Bucket(part, self._label(part)) for part in cut(cells, self._groups)]
        for bucket in self._buckets:
            for slot, cell in enumerate(bucket.cells):
                self._place[cell.index] = (bucket, slot)

    def _label(self, cells: Sequence[Cell]) -> str:
        """What a bucket is called: part of what the ranks compare, and for people."""
        if self._names is None:
            return ""
        names = [self._names[cell.index] for cell in cells]
        shown = ", ".join(names[:_MOST_SHOWN])[:200] + (", ..." if len(names) > _MOST_SHOWN else "")
        return f"gradients of {shown} ({len(names)}, {zlib.crc32(repr(names).encode()):08x})"

    def _wire(self, index: int) -> torch.dtype:
        probe = torch.empty(0, dtype=self.params[index].dtype)
        return self._compression.compress(probe)[0].dtype

    def _in_place(self, index: int, view: torch.Tensor) -> bool:
        """Whether the place in the bucket can be the gradient."""
        param = self.params[index]
        return param.is_cpu and view.dtype == param.dtype and self._compression is Compression.none

    def _fill(self, index: int) -> None:
        bucket, slot = self._place[index]
        view = bucket.views[slot]
        grad = self.params[index].grad
        if grad is not view:
            # A gradient kept from an earlier step must not change when its place is written again: it takes
            # its values with it to memory of its own.
            if self._in_place(index, view) and sys.getrefcount(view) > _OWN_REFERENCES:
                bucket.views[slot] = view.view_as(view)
                view.set_(view.clone())  # type: ignore[call-overload]
                view = bucket.views[slot]
            self._write(index, grad, view)
            if self._in_place(index, view):
                self.params[index].grad = view
        self._full.add(index)
        bucket.waiting -= 1

    def _write(self, index: int, grad: torch.Tensor | None, view: torch.Tensor) -> None:
        custom = self._compression is not Compression.none and not issubclass(
            self._compression, CastCompressor
        )
        with torch.no_grad():
            if grad is None and not custom:
                view.zero_()
                return
            grad = torch.zeros_like(self.params[index]) if grad is None else grad.detach()
            if grad.is_sparse:
                grad = grad.to_dense()
            if custom:
                grad, self._contexts[index] = self._compression.compress(grad)
                if grad.shape != view.shape:
                    raise ValueError("a compression for gradients must not change the shape")
            view.copy_(grad)

    def _launch(self) -> None:
        """Launches buckets in order, as far as they are full."""
        buckets = self._buckets or []
        while self._next < len(buckets) and not buckets[self._next].waiting:
            bucket = buckets[self._next]
            address = bucket.flat.data_ptr()
            with Together(self._process_set.group, "the exchange of gradients"):
                bucket.work = raw.all_reduce(
                    self._process_set.group,
                    address,
                    address,
                    bucket.flat.numel(),
                    dtype_code(bucket.flat),
                    engine_op(self._op),
                    prescale=self._scales[0],
                    postscale=self._scales[1],
                    keep=bucket,
                    name=bucket.name,
                )
                self._next += 1

    def _finish(self, bucket: Bucket) -> None:
        for cell, view in zip(bucket.cells, bucket.views, strict=True):
            param = self.params[cell.index]
            if self._in_place(cell.index, view):
                param.grad = view
                continue
            with torch.no_grad():
                if issubclass(self._compression, CastCompressor):
                    result = view
                else:
                    result = self._compression.decompress(view, self._contexts.get(cell.index))
                if param.grad is None or param.grad.is_sparse:
                    param.grad = torch.empty_like(param)
                param.grad.copy_(result)

    def _start_sparse(self, index: int) -> Callable[[], torch.Tensor]:
        param = self.params[index]
        grad = param.grad
        if grad is None:
            grad = torch.sparse_coo_tensor(
                torch.empty((1, 0), dtype=torch.int64),
                torch.empty((0, *param.shape[1:]), dtype=param.dtype, device=param.device),
                param.shape,
            )
        elif not grad.is_sparse:
            grad = grad.detach().to_sparse(1)
        return sparse_allreduce_async(grad, None, self._op, self._process_set)


def _hook(exchange: GradientExchange, index: int) -> Callable[[torch.Tensor], None]:
    # weak: the parameters may outlive the optimizer, and must not keep its buckets
    reference = weakref.ref(exchange)

    def fire(_: torch.Tensor) -> None:
        target = reference()
        if target is not None:
            target.ready(index)

    return fire
