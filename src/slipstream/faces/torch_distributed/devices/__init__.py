"""The accelerators whose tensors slipstream communicates: one file and one line here for each.

docs/devices.md says how to add one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from slipstream.faces.torch_distributed.devices.memory import host_buffer
from slipstream.staging.device import Device

__all__ = ["Device", "available", "for_tensor", "host_buffer", "register"]

Factory = Callable[[torch.device], Device]


def _cuda(device: torch.device) -> Device:
    from slipstream.faces.torch_distributed.devices.cuda import Cuda

    return Cuda(device)


_factories: dict[str, tuple[Factory, Callable[[], bool]]] = {"cuda": (_cuda, torch.cuda.is_available)}
_made: dict[torch.device, Device] = {}
_lock = threading.Lock()


def register(kind: str, factory: Factory | None, present: Callable[[], bool] = lambda: True) -> None:
    """Has tensors whose ``device.type`` is ``kind`` staged through ``factory(device)``, made once per device.

    ``present()`` says whether this machine has such a device. None as factory takes the kind away again (CPU
    tensors are then used where they lie).
    """
    with _lock:
        _factories.pop(kind, None)
        for device in [d for d in _made if d.type == kind]:
            del _made[device]
        if factory is not None:
            _factories[kind] = factory, present


def available() -> list[str]:
    """The kinds that this process can communicate beside the CPU's."""
    return [kind for kind, (_, present) in list(_factories.items()) if kind != "cpu" and present()]


def for_tensor(tensor: torch.Tensor) -> Device | None:
    """The device to stage ``tensor`` with; None for tensors the engine can use where they lie.

    ValueError if nobody has registered a device for it.
    """
    device = tensor.device
    if device.type not in _factories:
        if device.type == "cpu":
            return None
        raise ValueError(f"slipstream cannot communicate tensors on {device.type}")
    found = _made.get(device)
    if found is None:
        with _lock:
            found = _made.get(device)
            if found is None:
                found = _made[device] = _factories[device.type][0](device)
    return found
