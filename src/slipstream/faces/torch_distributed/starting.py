"""Starts the operations of a group: in the caller's thread, in the engine, or staged from an accelerator's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from slipstream.comm.collectives.addresses import MOST_QUICK_TAG
from slipstream.comm.collectives.copies_back import OPEN, CopyBack
from slipstream.comm.collectives.interruption import Together
from slipstream.comm.membership.group import Group
from slipstream.faces.torch_distributed import devices, operations
from slipstream.faces.torch_distributed.operations import Operation
from slipstream.faces.torch_distributed.wire import EXACT, Wire
from slipstream.faces.torch_distributed.works import FinishedWork, JoinedWork, PendingWork
from slipstream.faces.torch_tensors import byte_code, copy_back, is_plain
from slipstream.staging.process import stage

__all__ = ["OperationStarter"]


class OperationStarter:
    """Starts operations on ``members``, and gives a Work for each.

    ``staged``: the same members, as a group for what passes through host memory. ``limit``: seconds that operations
    may take which do not bring a limit of their own, 0 for the job's limit. ``wire``: what they travel as. Between
    `begin_batch` and `end_batch` works are also collected: the coalescing of c10d.
    """

    def __init__(self, members: Group, staged: Group, limit: float, wire: Wire = EXACT) -> None:
        self.members = members
        self.limit = limit
        self.alone = members.size == 1  # then there is nobody to wait for
        self.wire = wire
        self._staged = staged
        self._batch: list[Any] | None = None

    # ---- how an operation runs

    def limit_of(self, options: Any) -> float:
        """Seconds that an operation with these options of c10d may take."""
        seconds: float = options.timeout.total_seconds() if options is not None else 0.0
        return seconds if seconds > 0 else self.limit

    def group_for(self, tensor: torch.Tensor) -> Group:
        """The members, as the group that operations on such tensors use: staging wants one of its own."""
        return self.members if devices.for_tensor(tensor) is None else self._staged

    def is_synchronous(self, options: Any) -> bool:
        """Whether an operation with these options of c10d runs in the caller's thread."""
        return self._batch is None and (self.alone or (options is not None and not options.asyncOp))

    # ---- starting

    def send_at_once(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        """Sends a short message without a work of the engine; its Work, or None if it needs one."""
        return self._at_once(self.members.quick.send, tensor, peer, tag)

    def receive_at_once(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        """Takes a short message that has come without a work of the engine; its Work, or None if it needs one."""
        return self._at_once(self.members.quick.receive, tensor, peer, tag)

    def _at_once(self, run: Callable[..., bool], tensor: torch.Tensor, peer: int, tag: int) -> Any:
        if OPEN or not is_plain(tensor) or devices.for_tensor(tensor) is not None:
            return None
        if type(peer) is not int or type(tag) is not int or not 0 <= tag <= MOST_QUICK_TAG:
            return None
        if not 0 <= peer < self.members.size:
            return None
        code, factor = byte_code(tensor)
        if not run(tensor.data_ptr(), tensor.numel() * factor, code, peer, tag):
            return None
        return self.started(FinishedWork([tensor], True))

    def start(self, operation: Operation, options: Any = None) -> Any:
        """Starts it; its Work, which is done if the operation is synchronous."""
        call, src, dst, finish = operation.call, operation.src, operation.dst, operation.finish
        memory = dst if dst is not None else src
        assert memory is not None
        device = devices.for_tensor(memory)
        if device is not None:
            staged = stage(operations.transfer(device, operation, self._staged))
            return self.started(PendingWork(staged, operation.tensors))
        synchronous = self.is_synchronous(options)
        # A call that a signal's handler breaks off while it waits leaves its copy to later calls: see `copy_back`.
        waits_here = synchronous and (finish is None or self.alone)
        addresses = src.data_ptr() if src is not None else 0, dst.data_ptr() if dst is not None else 0
        landed: CopyBack | None = None
        keep: tuple[object, ...] = (src, dst)
        if finish is not None and not waits_here:
            channel = 0 if call.ends is None else self.members.channel(*call.ends)
            landed = copy_back(self.members, call.name, operation.tensors, finish, channel)
            keep = landed.keeping(src, dst)
        running = call.issue(*addresses, call.sent, call.received, keep, waits_here)
        if waits_here:
            if finish is not None:
                finish()
            return FinishedWork(operation.tensors)
        work = PendingWork(running, operation.tensors, landed)
        if synchronous:
            work.wait()
        return self.started(work)

    def start_all(self, ready: Sequence[Operation], options: Any) -> Any:
        """Starts several operations; one Work for all."""
        if len(ready) == 1:
            return self.start(ready[0], options)
        with Together(self.members, ready[0].call.name):
            return JoinedWork([self.start(operation) for operation in ready])

    def started(self, work: Any) -> Any:
        """Takes note of a work that was started, and returns it."""
        if self._batch is not None:
            self._batch.append(work)
        return work

    # ---- batches

    def begin_batch(self) -> None:
        """Collects works from now on."""
        self._batch = []

    def end_batch(self) -> Any:
        """One Work for all that was started since `begin_batch`."""
        works, self._batch = self._batch or [], None
        return JoinedWork(works)

    @contextlib.contextmanager
    def outside_batch(self) -> Iterator[None]:
        """What is started inside belongs to no batch."""
        batch, self._batch = self._batch, None
        try:
            yield
        finally:
            self._batch = batch
