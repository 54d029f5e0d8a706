"""Measures contenders in turns, batch by batch, and checks what each batch left.

A batch is a number of calls without a pause, after a barrier; the next batch belongs to another contender.
Sums of an in-place all-reduce follow each other in one buffer. Where a call may spoil its input otherwise, each
call of a batch has a buffer of its own. All else reads and writes the same two buffers, and what it writes
into is cleared before each batch.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import slipstream
from slipstream.base.errors import SlipstreamError
from slipstream.bench.collective.catalogue import COLLECTIVES, Shape
from slipstream.bench.collective.contenders import Bound, Call, Contender, Unsupported
from slipstream.bench.collective.task import Task
from slipstream.bench.collective.values import (
    Values,
    expected_sections,
    fill,
    input_sections,
    numpy_dtype,
    wrong_elements,
)
from slipstream.bench.gathering import broadcast_object, gather_objects
from slipstream.bench.turns import turns

__all__ = ["Meter"]

_CALLS = 200  # of a batch at most, and
_BYTES = 32 << 20  # bytes that its calls pass, and
_SECONDS = 0.1  # that it takes about
_LATE = 0.002  # seconds by which one rank comes late to a barrier that is checked

Array = NDArray[Any]
T = TypeVar("T")


@dataclass
class _Buffers:
    """The arrays of a batch: one pair, or one for each call."""

    sources: list[Array]
    targets: list[Array]


@dataclass
class _Sample:
    """What this rank has seen of a contender at one size."""

    seconds: list[float] = field(default_factory=list)
    wrong: int = 0
    first_wrong: str = ""


class Meter:
    """Measures the task's sizes one after another. ``one_clock``: whether times of all ranks can be compared."""

    def __init__(self, task: Task, contenders: list[Contender], one_clock: bool) -> None:
        self._task = task
        self._collective = COLLECTIVES[task.collective]
        self._contenders = contenders
        self._one_clock = one_clock
        self._dtype = numpy_dtype(task.dtype)
        self._rank, self._size = slipstream.rank(), slipstream.size()
        self._op = task.op if self._collective.reduces else None
        self._chains = task.collective == "all_reduce" and task.op == "sum"
        self._own_buffers = self._collective.reduces and self._collective.in_place and not self._chains

    def measure(self, shape: Shape) -> dict[str, Any]:
        """Measures one size; returns its numbers, and on every rank those of all ranks."""
        unsupported, calls = self._probe(shape)
        contenders = [one for one in self._contenders if one.name not in unsupported]
        values = self._values(calls)
        slots = calls if self._own_buffers else 1
        batches = self._bind_all(shape, contenders, slots)
        samples = {contender.name: _Sample() for contender in contenders}
        for repeat, place, contender in turns(contenders, self._task.repeats, self._task.warmup):
            sample = samples[contender.name]
            buffers, bounds = batches[contender.name]
            shift = 17 * (repeat + self._task.warmup) + 5 * place + 1
            spoil = self._task.inject_error and repeat == 0
            seconds = self._batch(shape, contender, buffers, bounds, calls, values, shift, spoil, sample)
            if repeat >= 0:
                sample.seconds.append(seconds / calls)
        return self._result(shape, calls, unsupported, samples)

    def _result(
        self, shape: Shape, calls: int, unsupported: dict[str, str], samples: dict[str, _Sample]
    ) -> dict[str, Any]:
        checked = self._collective.name != "barrier" or self._one_clock
        mine = {name: [one.seconds, one.wrong, one.first_wrong] for name, one in samples.items()}
        everyone = gather_objects(mine)
        rows: dict[str, Any] = {}
        for name in samples:
            texts = [f"rank {rank}: {one[name][2]}" for rank, one in enumerate(everyone) if one[name][2]]
            rows[name] = {
                "seconds": [one[name][0] for one in everyone],
                "wrong": sum(one[name][1] for one in everyone) if checked else None,
                "first_wrong": texts[0] if texts else "",
            }
        rows |= {name: {"unsupported": reason} for name, reason in unsupported.items()}
        size = {"bytes": shape.nbytes, "count": shape.count, "calls": calls}
        return size | {"contenders": rows}

    # ---- before it counts ----

    def _probe(self, shape: Shape) -> tuple[dict[str, str], int]:
        """Who cannot do it at all, and how many calls make a batch: the same number for all."""
        values = self._values(1)
        unsupported: dict[str, str] = {}
        seconds = 0.0
        for contender in self._contenders:
            buffers = self._buffers(shape, 1, contender.shared)
            bounds, reason = _attempt(functools.partial(self._bind, contender, buffers))
            run = functools.partial(self._batch, shape, contender, buffers, bounds or [], 1, values)
            if not reason:
                _, reason = _attempt(functools.partial(run, 1))  # the first call may build things
            if reason:
                unsupported[contender.name] = reason
            else:
                seconds = seconds or run(2)  # of the first that can: ours
        calls = min(_CALLS, _BYTES // max(shape.nbytes, 1), int(_SECONDS / max(seconds, 1e-9)))
        if self._chains:
            calls = min(calls, values.longest_chain())
        return unsupported, max(1, int(broadcast_object(calls)))

    def _values(self, calls: int) -> Values:
        return Values(self._dtype, self._size, self._op, calls if self._chains else 1)

    def _buffers(self, shape: Shape, slots: int, shared: bool) -> _Buffers:
        name, root = self._collective.name, self._rank == self._task.root
        whole, part = shape.elements, shape.count

        def array(elements: int) -> Array:
            if shared:
                memory: Array = slipstream.empty((slots, elements), self._dtype)
            else:
                memory = np.empty((slots, elements), dtype=self._dtype)
            memory[...] = 0  # touched before the clock starts
            return memory

        given = {"all_gather": part, "gather": part, "scatter": whole if root else 0}
        taken = {"reduce_scatter": part, "scatter": part, "gather": whole if root else 0}
        sources = list(array(given.get(name, whole)))
        targets = sources if self._collective.in_place else list(array(taken.get(name, whole)))
        return _Buffers(sources, targets)

    def _bind_all(
        self, shape: Shape, contenders: list[Contender], slots: int
    ) -> dict[str, tuple[_Buffers, list[Bound]]]:
        """All contenders on the same buffers, but for those that run on memory of their own kind."""
        kinds = {shared: self._buffers(shape, slots, shared) for shared in {one.shared for one in contenders}}
        return {one.name: (kinds[one.shared], self._bind(one, kinds[one.shared])) for one in contenders}

    def _bind(self, contender: Contender, buffers: _Buffers) -> list[Bound]:
        name, op, root = self._collective.name, self._task.op, self._task.root
        pairs = zip(buffers.sources, buffers.targets, strict=True)
        return [contender.bind(Call(name, source, target, op, root)) for source, target in pairs]

    # ---- one batch ----

    def _batch(
        self,
        shape: Shape,
        contender: Contender,
        buffers: _Buffers,
        bounds: list[Bound],
        calls: int,
        values: Values,
        shift: int,
        spoil: bool = False,
        sample: _Sample | None = None,
    ) -> float:
        """Seconds of this rank for all calls; what was wrong is added to ``sample``."""
        self._fill(shape, buffers, values, shift)
        for bound in bounds:
            bound.before()
        sequence = [bounds[number % len(bounds)].call for number in range(calls)]
        seconds = _time(sequence)
        contender.settle()
        for bound in bounds:
            bound.after()
        if sample is not None:
            count, first = self._check(shape, buffers, bounds, values, shift, spoil)
            sample.wrong += count
            sample.first_wrong = sample.first_wrong or first
        return seconds

    def _fill(self, shape: Shape, buffers: _Buffers, values: Values, shift: int) -> None:
        task = self._task
        sections = input_sections(task.collective, self._rank, task.root, shape.elements, shape.count)
        for slot, source in enumerate(buffers.sources):
            fill(source, sections, values, shift + slot)
        if buffers.targets is not buffers.sources:
            for target in buffers.targets:
                target[...] = 0

    def _check(
        self,
        shape: Shape,
        buffers: _Buffers,
        bounds: list[Bound],
        values: Values,
        shift: int,
        spoil: bool,
    ) -> tuple[int, str]:
        task = self._task
        if task.collective == "barrier":
            return self._check_barrier(bounds[0], shift, spoil)
        with_result = [r for r in range(self._size) if self._collective.has_result(r, task.root)]
        if spoil and self._rank == with_result[-1]:
            target = buffers.targets[-1]
            middle = target.size // 2
            target[middle] = 0 if target[middle] else 1
        sections = expected_sections(
            task.collective, self._rank, self._size, task.root, shape.elements, shape.count
        )
        count, first = 0, ""
        for slot, target in enumerate(buffers.targets):
            found, text = wrong_elements(target, sections, values, shift + slot)
            count, first = count + found, first or text
        return count, first

    def _check_barrier(self, bound: Bound, shift: int, spoil: bool) -> tuple[int, str]:
        """Whether this rank left one more barrier before the last rank had come to it."""
        if not self._one_clock:
            return 0, ""
        if shift % self._size == self._rank:
            time.sleep(_LATE)
        entered = time.monotonic_ns()
        bound.call()
        left = time.monotonic_ns()
        if spoil and self._rank == self._size - 1:
            left = 0
        last = max(gather_objects(entered))
        return (1, "left a barrier before all had come") if left < last else (0, "")


def _attempt(act: Callable[[], T]) -> tuple[T | None, str]:
    """The result of ``act``, or why some rank could not do it, the same on all ranks. Raises our own errors."""
    result, reason = None, ""
    try:
        result = act()
    except SlipstreamError:
        raise
    except Unsupported as error:
        reason = str(error)
    except Exception as error:
        text = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {text[0] if text else ''}"
    return result, next((text for text in gather_objects(reason) if text), "")


def _time(calls: list[Callable[[], object]]) -> float:
    slipstream.barrier()
    start = time.perf_counter()
    for call in calls:
        call()
    seconds = time.perf_counter() - start
    slipstream.barrier()  # nobody looks at results while others, perhaps on the same cores, still wait for theirs
    return seconds
