"""CUDA, and ROCm under the same name: two streams per GPU beside the caller's, and pinned memory.

Copies between contiguous memory are one `cudaMemcpyAsync` each. For strided ones PyTorch goes through a temporary
tensor on the GPU, which belongs to the side stream.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from slipstream.faces.torch_distributed.devices.memory import host_buffer
from slipstream.staging.device import Copies, Event, HostBuffer

__all__ = ["Cuda"]

_HIGH_PRIORITY = -1  # copies are short, and others wait for them


class Cuda:
    """A `Device`: one GPU."""

    def __init__(self, device: torch.device) -> None:
        """``device``: with its index, as tensors have it."""
        self._device = device
        self._out = torch.cuda.Stream(device, priority=_HIGH_PRIORITY)  # type: ignore[no-untyped-call]
        self._in = torch.cuda.Stream(device, priority=_HIGH_PRIORITY)  # type: ignore[no-untyped-call]

    def pinned(self, nbytes: int) -> HostBuffer:
        """Page-locked memory of PyTorch's own allocator for it."""
        with torch.cuda.device(self._device):
            return host_buffer(torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True))

    def ready(self) -> Event:
        """An event on the current stream; RuntimeError while that is being captured into a graph."""
        with torch.cuda.device(self._device):
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError("slipstream operations cannot be captured into a CUDA graph")
            return _record(torch.cuda.current_stream())

    def copy_out(self, copies: Copies) -> Event:
        """On the stream that leads out."""
        return _copy(self._out, copies)

    def copy_in(self, copies: Copies) -> Event:
        """On the stream that leads in."""
        return _copy(self._in, copies)

    def finish(self, work: Callable[[], None]) -> Event:
        """On the stream that leads in."""
        with torch.inference_mode(), torch.cuda.stream(self._in):
            work()
        return _record(self._in)

    def wait_for(self, event: Event) -> None:
        """The current stream waits (`cudaStreamWaitEvent`)."""
        assert isinstance(event, torch.cuda.Event)
        torch.cuda.current_stream(self._device).wait_event(event)


def _copy(stream: torch.cuda.Stream, copies: Copies) -> Event:
    # tensors made in inference mode can be written to only there, others also there
    with torch.inference_mode(), torch.cuda.stream(stream):
        for target, source in copies:
            target.copy_(source, non_blocking=True)
    return _record(stream)


def _record(stream: torch.cuda.Stream) -> Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event
