"""Gradients of PyTorch's parameters: hooks that fire in backward, and views of the buckets.

Where a gradient travels as it is, its place in the bucket becomes the gradient.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from slipstream.base.dtypes import DType
from slipstream.base.log import Log
from slipstream.comm.membership.group import Group
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.horovod.reduce_ops import Average, engine_op
from slipstream.faces.torch.compression import AnyCompression, way_and_compressor
from slipstream.faces.torch.data_movement import start_grouped_all_gather
from slipstream.faces.torch.sparse import sparse_sum
from slipstream.faces.torch_tensors import DTYPES, describe, dtype_code
from slipstream.gradients.buckets import Bucket, Parameter
from slipstream.gradients.compression import Way
from slipstream.gradients.exchange import GradientExchange
from slipstream.gradients.policy import Policy
from slipstream.gradients.stand_ins import may_start_sparse

__all__ = ["exchange_gradients"]

_log = Log("slipstream")


def _own_references() -> int:
    holder = [object()]
    held = holder[0]
    return sys.getrefcount(held)


_OWN_REFERENCES = _own_references()
"""What getrefcount says of an object that one list and one variable hold; interpreters count differently."""


_MARKED = 64  # values of a parameter


def exchange_gradients(
    params: Sequence[torch.Tensor],
    *,
    names: Sequence[str] | None,
    compression: AnyCompression,
    exact: Callable[[Parameter], bool],
    wires: Mapping[int, Way],
    op: int,
    predivide: float,
    passes: int,
    groups: Sequence[Sequence[int]],
    sparse_as_dense: bool,
    process_set: ProcessSet,
    overlaps: bool = False,
) -> GradientExchange:
    """The exchange of the gradients of ``params`` over a process set; ``op`` is Horovod's.

    ``predivide``: with Average, gradients are divided by it before the sum, and by size/``predivide`` after.
    ``names`` are the parameters' (None: they have none). ``exact`` says which travel as they are nevertheless,
    ``wires`` which have a way of their own, by number. ``overlaps``: as of GradientExchange.
    """
    scales = (1.0 / predivide, predivide) if op == Average else (1.0, 1.0)
    way, compressor = way_and_compressor(compression)
    return GradientExchange(
        _TorchGradients(params, names, compressor, op, sparse_as_dense, process_set),
        len(params),
        group=lambda: process_set.group,
        op=engine_op(op),
        prescale=scales[0],
        postscale=scales[1],
        passes=passes,
        groups=groups,
        overlaps=overlaps,
        policy=Policy(way, exact, wires if compressor is None else {}),
    )


def _mark(param: torch.Tensor) -> int:
    """A number made of some of its values, which lie all over it."""
    values = param.detach().reshape(-1)
    some = values[:: max(1, values.numel() // _MARKED)][: 2 * _MARKED].cpu()
    some = some.to(torch.complex128) + 0  # so -0.0 is 0.0; not all types of parameters can be added to
    return zlib.crc32(some.view(torch.uint8).numpy().tobytes())


class _TorchGradients:
    """`slipstream.gradients.exchange.Gradients` of PyTorch's parameters."""

    def __init__(
        self,
        params: Sequence[torch.Tensor],
        names: Sequence[str] | None,
        compressor: AnyCompression | None,
        op: int,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self._params = list(params)
        self._names = [""] * len(self._params) if names is None else list(names)
        self._compressor = compressor
        self._op = op
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self._views: dict[int, torch.Tensor] = {}
        self._contexts: dict[int, object] = {}
        self._sparse_dims: dict[int, int] = {}  # of gradients that were sparse, and travel dense
        self._told_of_frozen = False
        self._hooks: list[Any] = []

    def watch(self, ready: Callable[..., None]) -> None:
        for index, param in enumerate(self._params):
            hook = param.register_post_accumulate_grad_hook(partial(ready, index))  # type: ignore[no-untyped-call]
            self._hooks.append(hook)

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def describe(self) -> list[str]:
        return [describe(name, param) for name, param in zip(self._names, self._params, strict=True)]

    def marks(self) -> list[int]:
        return [_mark(param) for param in self._params]

    def sparse(self) -> list[bool]:
        return [
            param.grad is not None and param.grad.is_sparse and not self._sparse_as_dense
            for param in self._params
        ]

    def parameter(self, index: int) -> Parameter:
        param = self._params[index]
        sent = torch.empty(0, dtype=param.dtype, device="cpu")
        if self._compressor is not None:
            sent = self._compressor.compress(sent)[0]
        return Parameter(
            index, param.numel(), DType(dtype_code(sent)), self._names[index], tuple(param.shape)
        )

    def place(self, bucket: Bucket) -> None:
        memory = torch.from_numpy(bucket.memory)
        dtype = DTYPES[bucket.dtype]
        flat = memory[: bucket.count * dtype.itemsize].view(dtype)
        for place in bucket.places:
            index, count = place.parameter.index, place.parameter.count
            start = (place.address - bucket.address) // dtype.itemsize
            self._views[index] = flat[start : start + count].view(self._params[index].shape)

    def drop(self) -> None:
        for param in self._params:
            param.grad = None

    def write(self, index: int) -> None:
        param = self._params[index]
        view = self._views[index]
        grad = param.grad
        if grad is None and not param.requires_grad:
            self._tell_of_frozen(index)
        if grad is view:
            return
        if grad is not None and grad.is_sparse:
            self._sparse_dims[index] = grad.sparse_dim()
        in_place = self._in_place(index, view)
        # A gradient kept from an earlier step must not change when its place is written again: it takes
        # its values with it to memory of its own.
        if in_place and sys.getrefcount(view) > _OWN_REFERENCES:
            self._views[index] = view.view_as(view)
            view.set_(view.clone())  # type: ignore[call-overload]
            view = self._views[index]
        self._copy(index, grad, view)
        if in_place:
            param.grad = view

    def read(self, index: int) -> None:
        param = self._params[index]
        view = self._views[index]
        if self._in_place(index, view):
            param.grad = view
            return
        with torch.no_grad():
            context = self._contexts.pop(index, None)
            result = view if self._compressor is None else self._compressor.decompress(view, context)
            if index in self._sparse_dims:  # the optimizer may take no other
                param.grad = result.to(param).to_sparse(self._sparse_dims[index])
                return
            if param.grad is None or param.grad.is_sparse:
                param.grad = torch.empty_like(param)
            param.grad.copy_(result)

    def _tell_of_frozen(self, index: int) -> None:
        """Warns once: a single process would leave the parameter alone, while this rank may not know what others do."""
        if not self._told_of_frozen and self._process_set.rank() == 0:
            _log.warning(
                "parameter %s needs no gradient any more (requires_grad is False), but DistributedOptimizer still "
                "gives it one, of zeros unless other ranks have another: momentum and weight decay go on moving it; "
                "after a layer is frozen, make the optimizer anew from the parameters that are left",
                self._names[index] or f"number {index}",
            )
        self._told_of_frozen = True

    def start_sparse(self, index: int) -> Callable[[], None]:
        param = self._params[index]
        grad = param.grad
        if grad is None:
            grad = torch.sparse_coo_tensor(
                torch.empty((1, 0), dtype=torch.int64, device=param.device),
                torch.empty((0, *param.shape[1:]), dtype=param.dtype, device=param.device),
                param.shape,
            )
        elif not grad.is_sparse:
            grad = grad.detach().to_sparse(1)
        # All ranks are at this gradient now, those that have joined too.
        wait = sparse_sum(
            grad,
            self._op,
            self._process_set,
            lambda _, rows: start_grouped_all_gather(rows, None, self._process_set),
        )

        def finish() -> None:
            param.grad = wait().to(param.dtype)

        return finish

    def _in_place(self, index: int, view: torch.Tensor) -> bool:
        """Whether the place in the bucket can be the gradient."""
        param = self._params[index]
        plain = param.is_cpu and view.dtype == param.dtype and self._compressor is None
        return plain and index not in self._sparse_dims

    def _copy(self, index: int, grad: torch.Tensor | None, view: torch.Tensor) -> None:
        with torch.no_grad():
            if grad is None and self._compressor is None:
                view.zero_()
                return
            grad = torch.zeros_like(self._params[index]) if grad is None else grad.detach()
            if grad.is_sparse:
                grad = grad.to_dense()
            if self._compressor is not None:
                grad, self._contexts[index] = self._compressor.compress(grad)
                if grad.shape != view.shape:
                    raise ValueError("a compression for gradients must not change the shape")
            view.copy_(grad)


def _start_without_rows(dtype: DType, shape: Sequence[int], group: Group) -> Callable[[], None]:
    """The part of a rank in the sum of a sparse gradient of which it has nothing."""
    indices = torch.empty((0, 1), dtype=torch.int64, device="cpu")
    values = torch.empty((0, *shape[1:]), dtype=DTYPES[dtype], device="cpu")
    started = start_grouped_all_gather([indices, values], None, ProcessSet(group.ranks).on(group))

    def finish() -> None:
        started.wait()

    return finish


may_start_sparse(_start_without_rows)
