"""What the methods of a group have in common that start an operation.

c10d calls them by their names, so each is a method of its own. These decorators do what would stand in all of them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from slipstream.comm.collectives.interruption import abort_broken_off, guarded_call, whole
from slipstream.faces.torch_distributed.dispatching import PLAIN
from slipstream.faces.torch_distributed.profiling import recorded

__all__ = ["guarded", "operation", "served"]

_Method = TypeVar("_Method", bound=Callable[..., Any])

_Class = TypeVar("_Class", bound=type)
_EVENT = "_slipstream_event"  # of a method that starts an operation: what it is called
_whole = whole(lambda group, *_, **__: group.members)


def operation(
    event: str, inputs: Callable[..., Sequence[torch.Tensor]], *, by: str = "", told_by: int | None = 0
) -> Callable[[_Method], _Method]:
    """Decorates a method that starts an operation.

    The profiler shows it as ``event`` (`profiling.recorded`), and another back end's group does it where that serves
    the device (`served`; not if ``told_by`` is None).
    """

    def decorate(method: _Method) -> _Method:
        inner = method if told_by is None else served(by, told_by=told_by)(method)
        decorated = recorded(event, inputs)(inner)
        setattr(decorated, _EVENT, event)
        return decorated

    return decorate


def served(by: str = "", *, told_by: int = 0) -> Callable[[_Method], _Method]:
    """Decorates a method of a group: where another back end serves the tensors' device, its group is called instead.

    ``by``: the name of the method there, if it is another one. ``told_by``: the place of the argument that tells the
    device, a tensor or a list of tensors.
    """

    def decorate(method: _Method) -> _Method:
        name = by or method.__name__
        signature = inspect.signature(method)

        @functools.wraps(method)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.others:
                return method(self, *args, **kwargs)
            found = args[told_by]
            tensor = found if isinstance(found, torch.Tensor) else found[0]
            other = self.others.get(tensor.device.type)
            if other is None:
                return method(self, *args, **kwargs)
            given = signature.bind(self, *args, **kwargs).args[1:]  # it may call its parameters otherwise
            return getattr(other, name)(*(one for one in given if one is not None))

        return run  # type: ignore[return-value]

    return decorate


def guarded(kind: _Class) -> _Class:
    """Decorates a group's class above all others: the calls of its operations are whole (`interruption.whole`)."""
    for name, method in list(vars(kind).items()):
        if hasattr(method, _EVENT):
            setattr(kind, name, _whole(method))
    kind.allreduce = _guarded_all_reduce(kind.__dict__["allreduce"])  # type: ignore[attr-defined]
    return kind


def _guarded_all_reduce(decorated: Callable[..., Any]) -> Callable[..., Any]:
    """The same for all-reduces, which are called most.

    That of one plain tensor, as c10d itself calls it, takes none of the other decorators' ways around: that saves most
    of a microsecond.
    """
    plain = inspect.unwrap(decorated)
    depth = torch._C._len_torch_dispatch_stack
    options: Any = torch._C._distributed_c10d.AllreduceOptions

    @functools.wraps(plain)
    def allreduce(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 2 and type(args[1]) is options and not kwargs:
            tensors = args[0]
            if type(tensors) is list and len(tensors) == 1 and type(tensors[0]) in PLAIN and not depth():
                return plain(self, tensors, args[1])
        return decorated(self, *args, **kwargs)

    def broken_off(error: BaseException, call: int, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        abort_broken_off(error, call, "all_reduce", lambda: args[0].members)

    return guarded_call(allreduce, broken_off)
