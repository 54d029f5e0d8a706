"""The forms in which c10d's methods of a group may be called.

c10d calls them with lists of tensors and an object of options. Scripts that hold a ``ProcessGroup`` also call them with
one tensor, with an operation, a root and a time-out in place of the options, and by the names of the parameters, as the
signatures of ``torch.distributed.ProcessGroup`` allow. Here all become the first form.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch

__all__ = ["overloaded"]

_Class = TypeVar("_Class", bound=type)
_c10d: Any = torch._C._distributed_c10d

_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}  # of the options


@dataclass(frozen=True)
class _Form:
    """A method's parameters: ``first``, each with its names; then the options, or ``fields`` of them one by one."""

    first: tuple[tuple[str, ...], ...]
    options: Any = None
    fields: tuple[str, ...] = ()
    lists: bool = True  # ``first`` are lists of tensors; one tensor may stand for such a list
    also: tuple[Any, ...] = ()  # other types of options

    def plain(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arguments as the method takes them. TypeError if they fit no form."""
        found = dict(zip(range(len(args)), args, strict=False))
        for name, value in kwargs.items():
            place = self._place(name, found)
            if place is None or place in found:
                raise TypeError(f"{method}() got an unexpected argument {name!r}")
            found[place] = value
        count = len(self.first)
        missing = [self.first[place][0] for place in range(count) if place not in found]
        if missing or (found and max(found) >= count + max(len(self.fields), 1)):
            raise TypeError(
                f"{method}() does not take these arguments; missing: {', '.join(missing) or 'none'}"
            )
        first = [found.pop(place) for place in range(count)]
        if self.lists and any(isinstance(one, torch.Tensor) for one in first):
            first = [[one] if isinstance(one, torch.Tensor) or one else [] for one in first]
        return first if self.options is None else [*first, self._options(method, found)]

    def _place(self, name: str, found: Mapping[int, Any]) -> int | None:
        for place, names in enumerate(self.first):
            if name in names:
                return place
        if name in self.fields:
            return len(self.first) + self.fields.index(name)
        return len(self.first) if name == "opts" else None

    def _options(self, method: str, found: Mapping[int, Any]) -> Any:
        count = len(self.first)
        given = found.get(count)
        if isinstance(given, (self.options, *self.also)):
            if len(found) > 1:
                raise TypeError(f"{method}() takes options, or their fields one by one, not both")
            return given
        if given is not None and not self.fields:
            raise TypeError(f"{method}() takes {self.options.__name__}, not {type(given).__name__}")
        options = self.options()
        for field, place in zip(self.fields, range(count, count + len(self.fields)), strict=True):
            value = found.get(place)
            if value is None:
                continue
            if field == "timeout" and not isinstance(value, timedelta):
                raise TypeError(f"{method}() takes a timedelta as timeout, not {type(value).__name__}")
            setattr(options, _FIELDS[field], value)
        return options


_TENSOR = ("tensors", "tensor")
_FORMS = {
    "allreduce": _Form((_TENSOR,), _c10d.AllreduceOptions, ("op", "timeout")),
    "allreduce_coalesced": _Form(
        (_TENSOR[:1],), _c10d.AllreduceCoalescedOptions, also=(_c10d.AllreduceOptions,)
    ),
    "reduce": _Form((_TENSOR,), _c10d.ReduceOptions, ("root", "op", "timeout")),
    "broadcast": _Form((_TENSOR,), _c10d.BroadcastOptions, ("root", "timeout")),
    "allgather": _Form(
        (("output_tensors",), ("input_tensors", "input_tensor")), _c10d.AllgatherOptions, ("timeout",)
    ),
    "_allgather_base": _Form((("output",), ("input",)), _c10d.AllgatherOptions, lists=False),
    "allgather_coalesced": _Form((("output_lists",), ("input_list",)), _c10d.AllgatherOptions),
    "allgather_into_tensor_coalesced": _Form((("outputs",), ("inputs",)), _c10d.AllgatherOptions),
    "gather": _Form(
        (("output_tensors",), ("input_tensors", "input_tensor")), _c10d.GatherOptions, ("root", "timeout")
    ),
    "scatter": _Form(
        (("output_tensors", "output_tensor"), ("input_tensors",)), _c10d.ScatterOptions, ("root", "timeout")
    ),
    "reduce_scatter": _Form(
        (("output_tensors", "output"), ("input_tensors", "input")),
        _c10d.ReduceScatterOptions,
        ("op", "timeout"),
    ),
    "_reduce_scatter_base": _Form(
        (("outputTensor",), ("inputTensor",)), _c10d.ReduceScatterOptions, lists=False
    ),
    "reduce_scatter_tensor_coalesced": _Form((("outputs",), ("inputs",)), _c10d.ReduceScatterOptions),
    "alltoall": _Form((("output_tensors",), ("input_tensors",)), _c10d.AllToAllOptions),
    "alltoall_base": _Form(
        (("output",), ("input",), ("output_split_sizes",), ("input_split_sizes",)),
        _c10d.AllToAllOptions,
        ("timeout",),
        lists=False,
    ),
    "send": _Form((("tensors",), ("dstRank",), ("tag",)), lists=False),
    "recv": _Form((("tensors",), ("srcRank",), ("tag",)), lists=False),
    "barrier": _Form((), _c10d.BarrierOptions, ("timeout",)),
}


def overloaded(kind: _Class) -> _Class:
    """Decorates a group's class: its methods may be called in all forms that c10d allows."""
    for name, form in _FORMS.items():
        setattr(kind, name, _in_all_forms(name, getattr(kind, name), form))
    return kind


def _in_all_forms(name: str, method: Callable[..., Any], form: _Form) -> Callable[..., Any]:
    options, count = form.options, len(form.first)
    usual = count + (options is not None)

    @functools.wraps(method)  # c10d itself calls it in the usual form
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != usual or (usual > count and type(args[count]) is not options):
            args = tuple(form.plain(name, args, kwargs))
        return method(self, *args)

    return call
