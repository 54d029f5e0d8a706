"""CUDA tensors: what the simulated accelerator passes, on a real one. Two processes share a GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from comm.ranks import started  # noqa: E402
from faces.torch_distributed import staging_rank  # noqa: E402
from slipstream.faces.torch_distributed.devices.cuda import Cuda  # noqa: E402

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="PyTorch sees no CUDA device (or was built without CUDA)"
)


# ---- without a GPU: what is asked of which stream


class Streams:
    """Stands in for `torch.cuda`, and notes what it is asked for."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.capturing = False
        self.current = "compute"
        streams = self

        class Stream:
            count = 0

            def __init__(self, device: torch.device, priority: int = 0) -> None:
                assert (device, priority) == (torch.device("cuda", 1), -1)
                self.name = ("out", "in")[Stream.count]
                Stream.count += 1

        class Event:
            def record(self, stream: Any) -> None:
                streams.log.append(f"record on {getattr(stream, 'name', stream)}")

        self.Stream, self.Event = Stream, Event

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream.name
        yield
        self.current = before

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        yield

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def current_stream(self, device: torch.device | None = None) -> Any:
        streams = self

        class Current(str):
            def wait_event(self, event: Any) -> None:
                streams.log.append(f"{self} waits")

        return Current(self.current)


class Memory:
    """What copies are made to."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def copy_(self, source: str, *, non_blocking: bool) -> None:
        assert non_blocking
        self._streams.log.append(f"copy {source} on {self._streams.current}")


def test_copies_go_to_streams_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams()
    for name in ("Stream", "Event", "stream", "device", "is_current_stream_capturing", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(streams, name))
    device = Cuda(torch.device("cuda", 1))
    target: Any = Memory(streams)
    device.ready()
    device.copy_out([(target, "a"), (target, "b")])
    event = device.copy_in([(target, "c")])
    device.finish(lambda: streams.log.append(f"finish on {streams.current}"))
    device.wait_for(event)
    assert streams.log == [
        "record on compute",
        "copy a on out",
        "copy b on out",
        "record on out",
        "copy c on in",
        "record on in",
        "finish on in",
        "record on in",
        "compute waits",
    ]
    streams.capturing = True
    with pytest.raises(RuntimeError, match="cannot be captured into a CUDA graph"):
        device.ready()


# ---- with a GPU


@needs_cuda
@pytest.mark.parametrize("counts", [(0, 1, 7), (1001,)])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_operation(jobs: Any, size: int, counts: tuple[int, ...]) -> None:
    jobs[size](staging_rank.check_operations, "cuda", counts)


@needs_cuda
@pytest.mark.parametrize(
    "check",
    [
        staging_rank.check_groups,
        staging_rank.check_compute_goes_on,
        staging_rank.check_memory_lives,
        staging_rank.check_own_thread,
    ],
)
def test_behaviour(two: Any, check: Any) -> None:
    two(check, "cuda")


@needs_cuda
def test_training(c10d: Any) -> None:
    c10d(staging_rank.check_training, "cuda", fresh=True)


@needs_cuda
def test_failures() -> None:
    script = Path(staging_rank.__file__)
    env = {"PYTHONPATH": os.pathsep.join([str(script.parents[2]), *sys.path])}
    with started(script, 2, args=["fail", "cuda"], env=env) as ranks:
        ranks[0].process.wait(60)
        assert ranks[0].process.returncode == 0, "\n".join(rank.text() for rank in ranks)


@needs_cuda
def test_graphs_are_refused() -> None:
    device = Cuda(torch.device("cuda", torch.cuda.current_device()))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(RuntimeError, match="cannot be captured"):
        device.ready()


@needs_cuda
def test_pinned_memory_is_pinned() -> None:
    device = Cuda(torch.device("cuda", torch.cuda.current_device()))
    buffer = device.pinned(5000)
    assert buffer.array.is_pinned()
    assert buffer.array.dtype == torch.uint8
    assert buffer.nbytes == 5000
