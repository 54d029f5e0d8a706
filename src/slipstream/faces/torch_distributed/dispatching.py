"""Operations as PyTorch's dispatcher shows them: to its modes (`CommDebugMode`) and to subclasses of tensors.

c10d reaches its own back ends through operators (`torch.ops.c10d`), which modes watch and which subclasses of tensors
unwrap. It calls the methods of a group that is written in Python without them. So a method shows its operator to
whoever wants to see it, and is the operator's kernel. Where nobody wants to, that costs one look at the tensors' types.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _pop_mode_temporarily

from slipstream.faces.torch_distributed.works import FinishedWork

__all__ = ["PLAIN", "dispatched"]

_Class = TypeVar("_Class", bound=type)
_Args = tuple[Any, ...]
PLAIN = {torch.Tensor, torch.nn.Parameter}
_here = threading.local()  # .call: the method that is being shown, and its arguments behind the tensors


@dataclass(frozen=True)
class _Shape:
    """The operator of a method. Its arguments: the method's first ones, which hold the tensors, then ``rest``."""

    operator: str
    tensors: int
    rest: Callable[..., _Args] = lambda _group, *_: ()  # of the group and of the method's other arguments
    gives_tensors: bool = False  # the operator returns the method's first argument with the work


def _op(opts: Any) -> Any:
    return torch.distributed.ReduceOp.SUM if opts is None else opts.reduceOp


_SHAPES = {
    "allreduce": _Shape("allreduce_", 1, lambda opts=None: (_op(opts), None), True),
    "allreduce_coalesced": _Shape("allreduce_coalesced_", 1, lambda opts=None: (_op(opts),)),
    "reduce": _Shape("reduce_", 1, lambda opts: (_op(opts), opts.rootRank, opts.rootTensor)),
    "reduce_scatter": _Shape("reduce_scatter_", 2, lambda opts=None: (_op(opts),), True),
    "reduce_scatter_single": _Shape("_reduce_scatter_base_", 2, lambda opts=None: (_op(opts),), True),
    "reduce_scatter_single_coalesced": _Shape(
        "reduce_scatter_tensor_coalesced_", 2, lambda opts=None: (_op(opts),)
    ),
    "broadcast": _Shape("broadcast_", 1, lambda opts: (opts.rootRank, opts.rootTensor), True),
    "allgather": _Shape("allgather_", 2, gives_tensors=True),
    "allgather_coalesced": _Shape("allgather_coalesced_", 2),
    "all_gather_single": _Shape("_allgather_base_", 2, gives_tensors=True),
    "all_gather_single_coalesced": _Shape("allgather_into_tensor_coalesced_", 2),
    "gather": _Shape("gather_", 2, lambda opts: (opts.rootRank,)),
    "scatter": _Shape("scatter_", 2, lambda opts: (opts.rootRank,), True),
    "alltoall": _Shape("alltoall_", 2, gives_tensors=True),
    "all_to_all_single": _Shape("alltoall_base_", 2, lambda outs, ins, *_: (list(outs), list(ins))),
    "send": _Shape("send", 1, lambda dst, tag: (dst, tag)),
    "recv": _Shape("recv_", 1, lambda src, tag: (src, tag)),
    "recv_anysource": _Shape("recv_any_source_", 1, lambda tag: (tag,)),
}


class _Operator(OpOverload):
    """An operator of c10d that calls `kernel` when everybody has seen it.

    ``without_data``: what it returns instead for tensors on "meta", of its first argument and a finished work.
    """

    def __init__(
        self, like: OpOverload, kernel: Callable[..., Any], without_data: Callable[[Any, Any], Any]
    ) -> None:
        self.__dict__.update(like.__dict__)
        self.kernel = kernel
        self.without_data = without_data

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        tensors = list(_tensors(args))
        # The mode of fake tensors asks what comes of operands that have no data.
        if any(one.is_meta for one in tensors):
            return self.without_data(args[0], FinishedWork(tensors))
        kinds: tuple[Any, ...] = tuple(kind for kind in map(type, tensors) if kind not in PLAIN)
        if torch._C._len_torch_dispatch_stack():
            with _pop_mode_temporarily() as mode:
                found = mode.__torch_dispatch__(self, kinds, args, kwargs)
                if found is not NotImplemented:
                    return found
        for kind in kinds:
            if kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
                return kind.__torch_dispatch__(self, kinds, args, kwargs)
        return self.kernel(*args)


def _tensors(args: Any) -> Iterator[torch.Tensor]:
    for one in args:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from _tensors(one)


def dispatched(kind: _Class) -> _Class:
    """Decorates a group's class: its operations are shown to whoever wants to see them."""
    for name, shape in _SHAPES.items():
        plain = getattr(kind, name)
        shown = _shown(plain, shape)
        for alias, method in list(vars(kind).items()):
            if method is plain:
                setattr(kind, alias, shown)
    return kind


def _shown(method: Callable[..., Any], shape: _Shape) -> Callable[..., Any]:
    """``method``, which shows its operator first if anybody wants to see it."""

    def kernel(*args: Any) -> Any:
        group, more, options = _here.call
        tensors = args[: shape.tensors]
        _here.call = None
        try:
            work = method(group, *tensors, *more, **options)
        finally:
            _here.call = group, more, options
        return (tensors[0], work) if shape.gives_tensors else work

    depth = torch._C._len_torch_dispatch_stack
    signature = inspect.signature(method)
    like = getattr(torch.ops.c10d, shape.operator).default
    operator = _Operator(like, kernel, lambda first, work: (first, work) if shape.gives_tensors else work)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) < shape.tensors:  # they were given by their names
            args, kwargs = signature.bind(self, *args, **kwargs).args[1:], {}
        tensors, more = args[: shape.tensors], args[shape.tensors :]
        unseen = not depth() and all(map(_are_plain, tensors))
        if unseen or getattr(_here, "call", None) is not None:  # one operation may be made of others
            return method(self, *args, **kwargs)
        _here.call = self, more, kwargs
        try:
            found = operator(*tensors, self, *shape.rest(*more, **kwargs))
        finally:
            _here.call = None
        return found[1] if shape.gives_tensors else found

    return call


def _are_plain(first: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return type(first) in PLAIN
    return PLAIN.issuperset(map(type, first)) or all(
        isinstance(one, (list, tuple)) and _are_plain(one) for one in first
    )
