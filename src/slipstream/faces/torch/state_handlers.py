"""How `TorchState` keeps each of its values, and gives it to the other ranks: by the type of the value."""

from __future__ import annotations

import copy
from typing import Any

import torch

from slipstream.faces.horovod.objects import broadcast_object
from slipstream.faces.torch.state import broadcast_optimizer_state, broadcast_parameters

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "get_handler_registry",
    "handler_type",
    "set_handler_registry",
]


class StateHandler:
    """One value of a state, and its copy at the last commit; a subclass says how, in `save`, `restore` and `sync`."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Keeps a copy of what the value is now."""
        raise NotImplementedError

    def restore(self) -> None:
        """Makes the value what it was at the last `save`."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the value of rank 0, and keeps that; every rank calls it."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Another value takes the place of this one."""
        self.value = value
        self.save()


class SamplerStateHandler(StateHandler):
    """Of what has ``state_dict`` and ``load_state_dict``: samplers, learning-rate schedulers, a GradScaler."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        """Keeps a copy of its state."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Gives it the state that was kept."""
        # of the copy again: optimizers keep the tensors that they load, and change them in place
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Gives all ranks the state that rank 0 has now, and keeps that."""
        self._share()
        self.save()

    def _share(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))


class ModelStateHandler(SamplerStateHandler):
    """Of a module. Gradients are not kept: after `restore` there are none."""

    def restore(self) -> None:
        """Gives it the state that was kept, and no gradients."""
        super().restore()
        self.value.zero_grad(set_to_none=True)

    def _share(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(SamplerStateHandler):
    """Of an optimizer."""

    def _share(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)


_Registry = list[tuple[type, type[StateHandler]]]

_registry: _Registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
]


def get_handler_registry() -> _Registry:
    """Pairs of a type, and the class of `StateHandler` that `TorchState` has for its values: the first that fits.

    Behind them all comes `SamplerStateHandler`, for whatever has a ``state_dict``.
    """
    return _registry


def set_handler_registry(registry: _Registry) -> None:
    """Has each `TorchState` that is made from now on use these pairs; their classes are made of the value alone."""
    global _registry
    _registry = registry


def handler_type(value: object) -> type[StateHandler] | None:
    """The class for a value; None for an object that is copied as it is."""
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler
    has_state = all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))
    return SamplerStateHandler if has_state else None
