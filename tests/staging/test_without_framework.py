"""Staging between host memory and a device whose framework is NumPy: nothing of PyTorch takes part."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from slipstream.comm.collectives.work import Work
from slipstream.staging.calls import Call
from slipstream.staging.device import Copies, Event, HostBuffer, Memory, Strip
from slipstream.staging.stager import Limits, Stager
from slipstream.staging.transfers import StagedWork, Transfer, strips

Flat = NDArray[np.int32]

WIDTH = 64  # elements; parts are of so many
PATIENCE = 20.0


class Array:
    """A flat array as staging sees it."""

    def __init__(self, flat: Flat) -> None:
        self.flat = flat
        self.address: int = flat.ctypes.data
        self.nbytes = flat.nbytes

    def shares(self, other: Memory) -> bool:
        return isinstance(other, Array) and np.shares_memory(self.flat, other.flat)

    def views(self, cut: Sequence[Strip], buffer: HostBuffer) -> Copies:
        packed = buffer.array.view(self.flat.dtype)
        ends = list(accumulate(s.rows * s.width for s in cut))
        return [
            (part, packed[end - part.size : end].reshape(part.shape))
            for part, end in zip((picked(self.flat, s) for s in cut), ends, strict=True)
        ]


def picked(flat: Flat, s: Strip) -> Flat:
    return np.lib.stride_tricks.as_strided(
        flat[s.start :], (s.rows, s.width), (s.step * flat.itemsize, flat.itemsize)
    )


class Now:
    """An event that is done, and what returns one."""

    def query(self) -> bool:
        return True


class Accelerator:
    """A device that does everything at once. ``copied``: elements of each copy."""

    def __init__(self) -> None:
        self.copied: list[int] = []

    def pinned(self, nbytes: int) -> HostBuffer:
        memory = np.full(nbytes, 0xA5, dtype=np.uint8)
        return HostBuffer(memory, memory.ctypes.data, nbytes)

    def ready(self) -> Event:
        return Now()

    def copy_out(self, copies: Copies) -> Event:
        for target, source in copies:
            target[...] = source
            self.copied.append(source.size)
        return Now()

    copy_in = copy_out

    def finish(self, work: Callable[[], None]) -> Event:
        work()
        return Now()

    def wait_for(self, event: Event) -> None:
        assert event.query()


class Members:
    """A group that nothing is asked of."""

    rank = 0


class Bell:
    """`_core.Completions` of works that are done when they are issued."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def post(self, token: int) -> None:
        self.tokens.append(token)

    def wait(self, timeout: float | None) -> int | None:
        time.sleep(timeout or 0.0)
        return self.tokens.pop(0) if self.tokens else None


def echo(src: int, dst: int, sent: Sequence[int], received: Sequence[int], keep: Any, sync: bool) -> Work:
    """A network that gives every rank what it sent."""
    assert not sync
    assert list(sent) == list(received)
    ctypes.memmove(dst, src, sum(sent) * np.dtype(np.int32).itemsize)
    return Work(None)


@pytest.fixture
def stager() -> Stager:
    return Stager(Limits(part=WIDTH * 4, window=WIDTH * 8), Bell())


def run(stager: Stager, device: Accelerator, call: Call, src: Flat, dst: Flat, *rest: Any) -> StagedWork:
    members: Any = Members()
    work = stager.stage(Transfer(device, members, call, Array(src), Array(dst), *rest))
    end = time.monotonic() + PATIENCE
    while not work.done() and time.monotonic() < end:
        stager.turn()
    work.wait(0)
    return work


@pytest.mark.parametrize("counts", [[0], [1], [7 * WIDTH + 3], [WIDTH] * 4, [5, 0, 3 * WIDTH]])
def test_all_elements_go_out_and_come_back(stager: Stager, counts: list[int]) -> None:
    device = Accelerator()
    src = np.arange(sum(counts), dtype=np.int32)
    dst = np.zeros_like(src)
    done: list[bool] = []
    call = Call("echo", 4, counts, counts, echo)
    run(stager, device, call, src, dst, lambda: done.append((dst == src).all()))
    assert done == [True]
    assert sum(device.copied) == 2 * src.size
    assert stager.pool.lent_bytes == 0


def test_a_call_in_place_is_cut_into_parts(stager: Stager) -> None:
    device = Accelerator()
    x = np.arange(3 * WIDTH + 1, dtype=np.int32)
    run(stager, device, Call("echo", 4, [x.size], [x.size], echo), x, x)
    assert (x == np.arange(x.size)).all()
    assert sorted(device.copied) == [1, 1] + [WIDTH] * 6


@given(st.lists(st.integers(0, 9), max_size=5), st.integers(1, 6), st.booleans())
def test_strips_cover_every_element_once(counts: list[int], width: int, equal: bool) -> None:
    counts = [counts[0]] * len(counts) if equal and counts else counts
    seen = np.zeros(sum(counts), dtype=np.int32)
    for start in range(0, max(counts, default=0), width):
        for strip in strips(counts, start, start + width):
            picked(seen, strip)[...] += 1
    assert (seen == 1).all()


def test_equal_blocks_are_one_strip() -> None:
    assert strips([4, 4, 4], 1, 3) == [Strip(1, 3, 2, 4)]
    assert strips([4, 4, 4], 0, 4) == [Strip(0, 1, 12, 12)]
    assert strips([4, 2, 6], 1, 3) == [Strip(1, 1, 2, 4), Strip(5, 1, 1, 2), Strip(7, 1, 2, 6)]
    assert strips([4, 0], 4, 6) == []
