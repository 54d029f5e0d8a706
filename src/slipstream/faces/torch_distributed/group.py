"""The process group that c10d talks to.

Its methods are those that PyTorch 2.4 to 2.13 call, from Python and (eleven of them) from C++; shapes and meanings
are those of `torch.distributed`. A synchronous call runs in the caller's thread; an asynchronous one returns a Work
at once. The group of a job's all ranks owns the job's session: `shutdown` of it leaves the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.autograd import profiler

from slipstream.base.arguments import seconds_of
from slipstream.comm.collectives import addresses
from slipstream.comm.membership.group import Group
from slipstream.comm.membership.job import Job
from slipstream.faces.torch_distributed import devices, operations
from slipstream.faces.torch_distributed.all_reduces import AllReduces
from slipstream.faces.torch_distributed.dispatching import dispatched
from slipstream.faces.torch_distributed.methods import guarded, operation, served
from slipstream.faces.torch_distributed.monitor import monitored_barrier
from slipstream.faces.torch_distributed.overloads import overloaded
from slipstream.faces.torch_distributed.starting import OperationStarter
from slipstream.faces.torch_distributed.wire import wire_of
from slipstream.faces.torch_distributed.works import FinishedWork, PendingWork

__all__ = ["SlipstreamGroup", "limit_of"]

_c10d: Any = torch._C._distributed_c10d

Tensors = Sequence[torch.Tensor]


def _first(tensors: Tensors, *_: Any) -> Tensors:
    return tensors


def _second(_: Any, tensors: Tensors, *__: Any) -> Tensors:
    return tensors


@guarded
@overloaded
@dispatched
class SlipstreamGroup(_c10d.ProcessGroup):  # type: ignore[misc]
    """A c10d process group over ``members``.

    ``store``: the torch store of the group. ``timeout``: of operations that do not bring their own, None for the
    job's. ``owned``: the job to leave at `shutdown`. ``others``: groups that serve other devices, by device type
    (``"cpu:slipstream,cuda:nccl"``).
    """

    def __init__(
        self,
        members: Group,
        *,
        store: Any,
        timeout: timedelta | None,
        owned: Job | None,
        others: Mapping[str, Any],
    ) -> None:
        super().__init__(members.rank, members.size)
        self.members = members
        self.others = dict(others)
        self.object_numbers: Counter[str] = Counter()  # see `objects`
        staged = Group(members.ranks, members.job)
        limit = 0.0 if timeout is None else timeout.total_seconds()
        self._starter = OperationStarter(members, staged, limit, wire_of(members))
        self._all_reduces = AllReduces(self._starter)
        self._store = store
        self._owned = owned
        self._name = self._description = ""

    # ---- who we are

    def getBackendName(self) -> str:
        """The name c10d logs."""
        return "slipstream"

    def name(self) -> str:
        """The name of the backend."""
        return "slipstream"

    def get_group_store(self) -> Any:
        """The torch store the group was made with."""
        return self._store

    def setGroupName(self, name: str) -> None:
        """c10d's name of the group, by which functional collectives find it."""
        self._name = name

    def getGroupName(self) -> str:
        """What `setGroupName` was given."""
        return self._name

    def setGroupDesc(self, description: str) -> None:
        """What the group is for, in words."""
        self._description = description

    def getGroupDesc(self) -> str:
        """What `setGroupDesc` was given."""
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        kinds = dict.fromkeys(("cpu", *devices.available(), *self.others))
        return [torch.device(kind) for kind in kinds]

    def _get_backend(self, device: torch.device) -> Any:
        """What serves ``device``, for callers that ask what it can do."""
        return self.others[device.type]._get_backend(device) if device.type in self.others else self

    serves = "slipstream"
    label = "slipstream"  # in the profiler: the name that was asked for
    supports_splitting = supports_coalescing = supports_shrinking = False
    supports_tensor_alloc = supports_time_estimate = False

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time operations may take that do not bring a limit of their own."""
        self._starter.limit = seconds_of("timeout", timeout)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """c10d's debugging aid; the engine numbers operations itself."""

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def _start_coalescing(self, device: torch.device) -> None:
        self._starter.begin_batch()

    def _end_coalescing(self, device: torch.device) -> Any:
        return self._starter.end_batch()

    # ---- reductions

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        """Reduces ``tensors[0]`` in place; more tensors are as many operations."""
        opts = _c10d.AllreduceOptions() if opts is None else opts
        tensor = tensors[0]
        if len(tensors) > 1 or profiler._is_profiler_enabled:
            return self.allreduce_coalesced(tensors, opts)
        if self.others and tensor.device.type in self.others:
            return self.others[tensor.device.type].allreduce([tensor], opts)
        return self._all_reduces.of_one(tensor, opts)

    @operation("all_reduce", _first)
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        """Reduces each tensor in place; one Work for all."""
        opts = _c10d.AllreduceCoalescedOptions() if opts is None else opts
        return self._all_reduces.of_several(tensors, opts)

    @operation("reduce", _first)
    def reduce(self, tensors: Tensors, opts: Any) -> Any:
        """Reduces ``tensors[0]`` onto ``opts.rootRank``; elsewhere it stays as it is."""
        start, tensor = self._starter, tensors[0]
        group, limit = start.group_for(tensor), start.limit_of(opts)
        return start.start(operations.reduce(group, tensor, opts.reduceOp, opts.rootRank, limit), opts)

    @operation("reduce_scatter", lambda _, inputs, *__: inputs[0])
    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Any:
        """``outputs[i]`` = this rank's block of the reduction of the list ``inputs[i]``, one block per rank."""
        return self._reduce_scatter(outputs, inputs, opts)

    @operation("reduce_scatter", lambda _, input, *__: [input], told_by=None)
    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """``output`` = this rank's block of the reduction of ``input``, which holds all blocks."""
        return self._reduce_scatter_singles([output], [input], opts)

    @operation("reduce_scatter", _second, told_by=None)
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """`reduce_scatter_single` for each pair; one Work for all."""
        return self._reduce_scatter_singles(outputs, inputs, opts)

    @served("reduce_scatter_tensor_coalesced")
    def _reduce_scatter_singles(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Any:
        return self._reduce_scatter(outputs, [[tensor] for tensor in inputs], opts)

    def _reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Any:
        opts = _c10d.ReduceScatterOptions() if opts is None else opts
        start = self._starter
        limit = start.limit_of(opts)
        ready = [
            operations.reduce_scatter(start.group_for(out), out, ins, opts.reduceOp, limit, start.wire)
            for out, ins in zip(outputs, inputs, strict=True)
        ]
        return start.start_all(ready, opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- moving data

    @operation("broadcast", _first)
    def broadcast(self, tensors: Tensors, opts: Any) -> Any:
        """``tensors[0]`` = that of ``opts.rootRank``."""
        start, tensor = self._starter, tensors[0]
        group, limit = start.group_for(tensor), start.limit_of(opts)
        return start.start(operations.broadcast(group, tensor, opts.rootRank, limit), opts)

    @operation("all_gather", _second, told_by=None)
    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """``outputs[i][r]`` = rank r's ``inputs[i]``; ranks may differ in size."""
        return self._all_gather(outputs, inputs, opts)

    @operation("all_gather", _second, told_by=None)
    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """``outputs[r][i]`` = rank r's ``inputs[i]``."""
        # c10d gives the outputs by rank, then by tensor
        return self._all_gather(list(zip(*outputs, strict=True)), inputs, opts)

    @operation("all_gather", lambda _, input, *__: [input], told_by=None)
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """``output`` = every rank's ``input``, one after another."""
        return self._all_gather_singles([output], [input], opts)

    @operation("all_gather", _second, told_by=None)
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """`all_gather_single` for each pair; one Work for all."""
        return self._all_gather_singles(outputs, inputs, opts)

    @served("allgather_into_tensor_coalesced", told_by=1)
    def _all_gather_singles(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Any:
        return self._all_gather([[tensor] for tensor in outputs], inputs, opts)

    @served("allgather", told_by=1)
    def _all_gather(self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Tensors, opts: Any) -> Any:
        start = self._starter
        limit = start.limit_of(opts)
        ready = [
            operations.all_gather(start.group_for(tensor), outs, tensor, limit, start.wire)
            for outs, tensor in zip(outputs, inputs, strict=True)
        ]
        return start.start_all(ready, opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @operation("gather", _second, told_by=1)
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Any:
        """``outputs[0][r]`` on ``opts.rootRank`` = rank r's ``inputs[0]``."""
        start, tensor = self._starter, inputs[0]
        outs = outputs[0] if outputs else []
        group, limit = start.group_for(tensor), start.limit_of(opts)
        return start.start(operations.gather(group, outs, tensor, opts.rootRank, limit), opts)

    @operation("scatter", lambda _, inputs, *__: inputs[0] if inputs else [])
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Any:
        """``outputs[0]`` = this rank's of the list ``inputs[0]`` on ``opts.rootRank``."""
        start, tensor = self._starter, outputs[0]
        ins = inputs[0] if inputs else []
        group, limit = start.group_for(tensor), start.limit_of(opts)
        return start.start(operations.scatter(group, tensor, ins, opts.rootRank, limit), opts)

    @operation("all_to_all", _second, told_by=1)
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """``inputs[p]`` goes to rank p; ``outputs[p]`` comes from it."""
        start, size = self._starter, self.members.size
        if len(outputs) != size or len(inputs) != size:
            raise ValueError(f"all_to_all needs {size} input and {size} output tensors, one per rank")
        sent, received = [t.numel() for t in inputs], [t.numel() for t in outputs]
        group, limit = start.group_for(inputs[0]), start.limit_of(opts)
        ready = operations.all_to_all(
            group, outputs, inputs, limit, sent=sent, received=received, wire=start.wire
        )
        return start.start(ready, opts)

    @operation("all_to_all", lambda _, input, *__: [input], by="alltoall_base", told_by=1)
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Any:
        """Rows of ``input`` go to each rank, rows of ``output`` come from it: as the splits say, default equally."""
        start, size = self._starter, self.members.size
        sent = operations.elements_per_rank(input, input_splits, size)
        received = operations.elements_per_rank(output, output_splits, size)
        group, limit = start.group_for(input), start.limit_of(opts)
        ready = operations.all_to_all(
            group, [output], [input], limit, sent=sent, received=received, wire=start.wire
        )
        return start.start(ready, opts)

    alltoall_base = all_to_all_single

    # ---- between two ranks

    @operation("send", _first)
    def send(self, tensors: Tensors, dst: int, tag: int) -> Any:
        """Sends ``tensors[0]`` to rank ``dst`` of the group."""
        start, tensor = self._starter, tensors[0]
        if (work := start.send_at_once(tensor, dst, tag)) is not None:
            return work
        return start.start(operations.send(start.group_for(tensor), tensor, dst, tag, start.limit))

    @operation("recv", _first)
    def recv(self, tensors: Tensors, src: int, tag: int) -> Any:
        """Receives into ``tensors[0]`` what rank ``src`` of the group sends with this tag."""
        start, tensor = self._starter, tensors[0]
        if (work := start.receive_at_once(tensor, src, tag)) is not None:
            return work
        return start.start(operations.recv(start.group_for(tensor), tensor, src, tag, start.limit))

    @operation("recvAnySource", _first)
    def recv_anysource(self, tensors: Tensors, tag: int) -> Any:
        """Receives into ``tensors[0]`` what the first rank sends with this tag; the Work tells which."""
        start, tensor = self._starter, tensors[0]
        return start.start(operations.recv_any(start.group_for(tensor), tensor, tag, start.limit))

    # ---- barriers, and the end

    @operation("barrier", lambda *_: [], told_by=None)
    def barrier(self, opts: Any = None) -> Any:
        """Done once every rank has called it."""
        opts = _c10d.BarrierOptions() if opts is None else opts
        device = opts.device
        if device is not None and device.type in self.others:
            return self.others[device.type].barrier(opts)
        start = self._starter
        sync = start.is_synchronous(opts)
        running = addresses.barrier(self.members, sync=sync, timeout=start.limit_of(opts))
        return FinishedWork([]) if sync else start.started(PendingWork(running, []))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """As `torch.distributed.monitored_barrier`: says which ranks did not come, and leaves the group usable."""
        limit = self._starter.limit or self.members.job.settings.timeout
        seconds = limit if timeout is None else seconds_of("timeout", timeout)
        monitored_barrier(self._store, self.members, seconds, wait_all_ranks)

    def shutdown(self) -> None:
        """Leaves the job if the group is that of all its ranks; operations that still run fail with Aborted."""
        for other in self.others.values():
            other.shutdown()
        if self._owned is not None:
            self._owned.close()

    def abort(self) -> None:
        """Fails what runs in the job, on this rank and all others, with Aborted."""
        for other in self.others.values():
            other.abort()
        self.members.session.abort(
            f"rank {self.members.rank} aborted the process group {self._name or 'of all ranks'}"
        )


def limit_of(group: SlipstreamGroup) -> float:
    """Seconds that operations of the group may take which do not bring a limit of their own; 0 for the job's."""
    return group._starter.limit
