"""The CPU as a device: its memory is host memory, and whatever it is given is done at once.

CPU tensors need no staging (the engine works on them where they lie). Registered for ``"cpu"``, this sends them
through staging all the same, which is the plainest way to see what that does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from slipstream.faces.torch_distributed.devices.memory import host_buffer
from slipstream.staging.device import Copies, Event, HostBuffer

__all__ = ["Cpu"]


class _Done:
    def query(self) -> bool:
        return True


class Cpu:
    """A `Device` without queues: calls do their work before they return."""

    def __init__(self, device: torch.device) -> None:
        """``device`` is the CPU; there is but one."""

    def pinned(self, nbytes: int) -> HostBuffer:
        """Ordinary memory."""
        return host_buffer(torch.empty(nbytes, dtype=torch.uint8, device="cpu"))

    def ready(self) -> Event:
        """Everything has been done."""
        return _Done()

    def copy_out(self, copies: Copies) -> Event:
        """Copies now."""
        with torch.inference_mode():
            for target, source in copies:
                target.copy_(source)
        return _Done()

    copy_in = copy_out

    def finish(self, work: Callable[[], None]) -> Event:
        """Calls ``work`` now."""
        with torch.inference_mode():
            work()
        return _Done()

    def wait_for(self, event: Event) -> None:
        """Every event is done."""
