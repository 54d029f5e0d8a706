"""A simulated accelerator: CPU tensors play device memory, and threads play queues, later than one would like.

What it does to find mistakes:

- Copies and kernels run on threads, after delays and behind gates that a test holds.
- Pinned memory is filled with a poison as soon as its content has no meaning: when it is new, from the moment a copy
  to it is asked for until that is done, and after a copy from it.
- Every access to memory is checked for its order against all accesses before: two that overlap, of which one writes,
  must be ordered by their queue, by an event one queue waited for, or by an event the host saw done before it asked
  for the second (vector clocks). So a missing wait is found whichever way the threads happen to run.

Kernels run on the current queue: `launch`. ``inline=True`` is for whole test-suites on CPU tensors: the calling thread
is its own current queue, so that tests may look at tensors at once.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from slipstream.faces.torch_distributed.devices import host_buffer
from slipstream.staging.device import HostBuffer

POISON = 0xA5
PATIENCE = 30.0  # seconds a queue waits for a gate

Clock = dict["Queue", int]
Access = tuple[torch.Tensor, bool]  # whether it writes


def merge(clock: Clock, other: Clock) -> None:
    for queue, number in other.items():
        clock[queue] = max(clock.get(queue, 0), number)


class Event:
    """A place in a queue, and all that lies before it."""

    def __init__(self, device: Simulated, clock: Clock) -> None:
        self._device = device
        self.clock = clock
        self.done = threading.Event()

    def query(self) -> bool:
        if not self.done.is_set():
            return False
        merge(self._device.seen_by_host(), self.clock)
        return True


class Queue:
    """Runs what it is given in order, on a thread of its own."""

    def __init__(self, device: Simulated, name: str) -> None:
        self.name = name
        self._device = device
        self._clock: Clock = {self: 0}
        self._work: deque[tuple[Callable[[], object], Event] | None] = deque()
        self._bell = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"simulated {name}", daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], object], accesses: Sequence[Access] = ()) -> Event:
        """Has ``work``, which touches what ``accesses`` say, done behind all that was put before."""
        with self._device.lock:
            merge(self._clock, self._device.seen_by_host())
            self._clock[self] += 1
            event = Event(self._device, dict(self._clock))
            for tensor, writes in accesses:
                self._device.check(tensor, writes, self, event.clock)
            with self._bell:
                self._work.append((work, event))
                self._bell.notify()
        return event

    def wait_for(self, event: Event) -> None:
        with self._device.lock:
            merge(self._clock, event.clock)
        self.put(lambda: self._device.expect(event.done))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing put on the queue inside the context runs before its end."""
        gate = threading.Event()
        self.put(lambda: self._device.expect(gate))
        try:
            yield
        finally:
            gate.set()

    def stop(self) -> None:
        with self._bell:
            self._work.append(None)
            self._bell.notify()
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        with torch.inference_mode():
            while True:
                with self._bell:
                    self._bell.wait_for(lambda: self._work)
                    item = self._work.popleft()
                if item is None:
                    return
                work, event = item
                self._device.dawdle()
                try:
                    work()
                except Exception as error:
                    self._device.wrong.append(f"{self.name}: {error!r}")
                event.done.set()


class Simulated:
    """A `Device`. ``wrong`` lists what it has caught; ``log`` is (queue, bytes) of every copy done."""

    def __init__(self, *, inline: bool = False, delay: float = 2e-4, seed: int = 0) -> None:
        """``delay``: seconds that a piece of work takes at most, beyond what it takes."""
        self.wrong: list[str] = []
        self.log: list[tuple[str, int]] = []
        self.lock = threading.RLock()
        self._inline = inline
        self._delay = delay
        self._random = random.Random(seed)
        self._local = threading.local()
        self._accesses: list[
            tuple[torch.Tensor, int, int, bool, Queue, int]
        ] = []  # tensors stay, as do addresses
        self.fails: set[str] = set()  # "out" or "in": the next such copy raises
        self.main, self.out, self.into = (Queue(self, name) for name in ("main", "out", "in"))
        self._queues = [self.main, self.out, self.into]

    # ---- for tests

    def queue(self, name: str) -> Queue:
        """A further queue."""
        self._queues.append(Queue(self, name))
        return self._queues[-1]

    @contextmanager
    def using(self, queue: Queue) -> Iterator[None]:
        """Makes ``queue`` the current one of this thread."""
        before = self._current()
        self._local.queue = queue
        try:
            yield
        finally:
            self._local.queue = before

    def launch(
        self,
        kernel: Callable[[], object],
        reads: Sequence[torch.Tensor] = (),
        writes: Sequence[torch.Tensor] = (),
    ) -> None:
        """Puts a kernel on the current queue."""
        accesses = [(t, False) for t in reads] + [(t, True) for t in writes]
        self._current().put(kernel, accesses)

    def values(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the tensor holds when the current queue has come that far; waits for it."""
        found: list[torch.Tensor] = []
        event = self._current().put(lambda: found.append(tensor.clone()), [(tensor, False)])
        self.expect(event.done)
        event.query()
        return found[0]

    def close(self) -> None:
        """Ends the queues; AssertionError if anything was wrong."""
        for queue in self._queues:
            queue.stop()
        assert not self.wrong, "\n".join(self.wrong)

    # ---- Device

    def pinned(self, nbytes: int) -> HostBuffer:
        return host_buffer(torch.full((nbytes,), POISON, dtype=torch.uint8))

    def ready(self) -> Event:
        if not self._inline:
            return self._current().put(lambda: None)
        event = Event(self, {})
        event.done.set()
        return event

    def copy_out(self, copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Event:
        self._may_fail("out")
        for host, _ in copies:
            _poison(host)
        return self.out.put(lambda: self._copy("out", copies), _accesses(copies))

    def copy_in(self, copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Event:
        self._may_fail("in")
        return self.into.put(lambda: self._copy("in", copies), _accesses(copies))

    def finish(self, work: Callable[[], None]) -> Event:
        return self.into.put(work)

    def wait_for(self, event: Event) -> None:
        if self._inline:
            self.expect(event.done)
        else:
            self._current().wait_for(event)

    # ---- for queues and events

    def seen_by_host(self) -> Clock:
        """What the calling thread has seen done."""
        if not hasattr(self._local, "clock"):
            self._local.clock = {}
        clock: Clock = self._local.clock
        return clock

    def check(self, tensor: torch.Tensor, writes: bool, queue: Queue, clock: Clock) -> None:
        """Compares an access with all before it."""
        if tensor.numel() == 0 or self._inline:
            return
        for low, high in _ranges(tensor):
            for _, other_low, other_high, other_writes, other, number in self._accesses:
                overlap = low < other_high and other_low < high and (writes or other_writes)
                if overlap and clock.get(other, 0) < number:
                    self.wrong.append(f"{queue.name} touches memory without waiting for {other.name}")
            self._accesses.append((tensor, low, high, writes, queue, clock[queue]))

    def expect(self, happening: threading.Event) -> None:
        if not happening.wait(PATIENCE):
            self.wrong.append("a queue waited in vain")

    def dawdle(self) -> None:
        """The time that work takes on a device."""
        if self._delay:
            time.sleep(self._random.random() * self._delay)

    def _current(self) -> Queue:
        return getattr(self._local, "queue", self.main)

    def _may_fail(self, what: str) -> None:
        if what in self.fails:
            self.fails.discard(what)
            raise RuntimeError(f"simulated: cannot copy {what}")

    def _copy(self, what: str, copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for target, source in copies:
            target.copy_(source)
            self.log.append((what, target.numel() * target.element_size()))
            if what == "in":
                _poison(source)


def _accesses(copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[Access]:
    return [access for target, source in copies for access in ((source, False), (target, True))]


def _ranges(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """The addresses of a tensor: rows of a cut through blocks are apart."""
    if tensor.is_contiguous():
        start = tensor.data_ptr()
        return [(start, start + tensor.numel() * tensor.element_size())]
    return [span for row in tensor for span in _ranges(row)]


def _poison(host: torch.Tensor) -> None:
    with torch.inference_mode():
        host.view(-1).view(torch.uint8).fill_(POISON)
