"""The process group that c10d talks to.

Its methods are those that PyTorch 2.4 to 2.13 call, from Python and (eleven of them) from C++; shapes and meanings
are those of `torch.distributed`. A synchronous call runs in the caller's thread; an asynchronous one returns a Work
at once. The group of a job's all ranks owns the job's session: `shutdown` of it leaves the job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.autograd import profiler

from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.interruption import Together, abort_broken_off, begun, whole
from slipstream.comm.membership.group import Group
from slipstream.comm.membership.job import Job
from slipstream.faces.torch_distributed import devices, operations, sparse
from slipstream.faces.torch_distributed.dispatching import dispatched
from slipstream.faces.torch_distributed.monitor import monitored_barrier
from slipstream.faces.torch_distributed.operations import Operation
from slipstream.faces.torch_distributed.profiling import recorded
from slipstream.faces.torch_distributed.reduce_ops import reduction
from slipstream.faces.torch_distributed.works import FinishedWork, JoinedWork, PendingWork
from slipstream.faces.torch_tensors import is_plain, landing
from slipstream.staging.process import stage

__all__ = ["SlipstreamGroup"]

_c10d: Any = torch._C._distributed_c10d

Tensors = Sequence[torch.Tensor]
_TINY = 64  # elements of all-reduces whose works are kept for a while


def _first(tensors: Tensors, *_: Any) -> Tensors:
    return tensors


def _second(_: Any, tensors: Tensors, *__: Any) -> Tensors:
    return tensors


_whole = whole(lambda self, *_, **__: self.members)


@dispatched
class SlipstreamGroup(_c10d.ProcessGroup):  # type: ignore[misc]
    """A c10d process group over ``members``.

    ``store``: the torch store of the group. ``timeout``: of operations that do not bring their own. ``owned``: the
    job to leave at `shutdown`. ``others``: groups that serve other devices, by device type
    (``"cpu:slipstream,cuda:nccl"``).
    """

    def __init__(
        self,
        store: Any,
        members: Group,
        timeout: timedelta,
        owned: Job | None,
        others: Mapping[str, Any],
    ) -> None:
        super().__init__(members.rank, members.size)
        self.members = members
        self._staged = Group(members.ranks, members.job)
        self._alone = members.size == 1  # then there is nobody to wait for
        self._store = store
        self._limit = timeout.total_seconds()
        self._owned = owned
        self._others = dict(others)
        self._name = self._description = ""
        self._batch: list[Any] | None = None  # the works of a coalescing context
        # DDP's Join hands a work to C++ that outlives its Python object, and then waits on it in vain
        self._recent: deque[Any] = deque(maxlen=64)

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
        kinds = dict.fromkeys(("cpu", *devices.available(), *self._others))
        return [torch.device(kind) for kind in kinds]

    def _get_backend(self, device: torch.device) -> Any:
        """What serves ``device``, for callers that ask what it can do."""
        return self._others[device.type]._get_backend(device) if device.type in self._others else self

    serves = "slipstream"
    label = "slipstream"  # in the profiler: the name that was asked for
    supports_splitting = supports_coalescing = supports_shrinking = False
    supports_tensor_alloc = supports_time_estimate = False

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time operations may take that do not bring a limit of their own."""
        self._limit = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """c10d's debugging aid; the engine numbers operations itself."""

    def _get_sequence_number_for_group(self) -> int:
        return 0

    # ---- running operations

    def _limit_of(self, options: Any) -> float:
        seconds: float = options.timeout.total_seconds() if options is not None else 0.0
        return seconds if seconds > 0 else self._limit

    def _other(self, tensor: torch.Tensor) -> Any:
        """The group of another backend that serves the tensor's device."""
        return self._others.get(tensor.device.type) if self._others else None

    def _of(self, tensor: torch.Tensor) -> Group:
        """The members, as the group that operations on such tensors use: staging wants one of its own."""
        return self.members if devices.for_tensor(tensor) is None else self._staged

    def _run(self, operation: Operation, options: Any = None) -> Any:
        call, src, dst, finish = operation.call, operation.src, operation.dst, operation.finish
        memory = dst if dst is not None else src
        assert memory is not None
        device = devices.for_tensor(memory)
        if device is not None:
            staged = stage(operations.transfer(device, operation, self._staged))
            return self._started(PendingWork(staged, operation.tensors))
        sync = self._batch is None and (self._alone or (options is not None and not options.asyncOp))
        addresses = src.data_ptr() if src is not None else 0, dst.data_ptr() if dst is not None else 0
        running = call.issue(*addresses, call.sent, call.received, (src, dst), sync)
        if sync:
            if finish is not None:
                finish()
            return FinishedWork(operation.tensors)
        landed: Any = None
        if finish is not None:
            channel = 0 if call.ends is None else self.members.channel(*call.ends)
            landed = landing(running, self.members, call.name, operation.tensors, finish, channel)
        return self._started(PendingWork(running, operation.tensors, landed))

    def _started(self, work: Any) -> Any:
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _all(self, ready: Sequence[Operation], options: Any) -> Any:
        if len(ready) == 1:
            return self._run(ready[0], options)
        with Together(self.members, ready[0].call.name):
            return JoinedWork([self._run(operation) for operation in ready])

    def _start_coalescing(self, device: torch.device) -> None:
        self._batch = []

    def _end_coalescing(self, device: torch.device) -> Any:
        works, self._batch = self._batch or [], None
        return JoinedWork(works)

    # ---- reductions

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        """Reduces ``tensors[0]`` in place; more tensors are as many operations."""
        before = begun()  # as `whole`, which would cost this one a fiftieth
        try:
            return self._allreduce(tensors, opts)
        except BaseException as error:
            if begun() == before:
                abort_broken_off(error, "all_reduce", lambda: self.members)
            raise

    def _allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        opts = _c10d.AllreduceOptions() if opts is None else opts
        tensor = tensors[0]
        if len(tensors) > 1 or profiler._is_profiler_enabled:
            return self.allreduce_coalesced(tensors, opts)
        if self._others or not is_plain(tensor):
            return self._allreduce_slowly(tensor, opts)
        code, op, plain = reduction(opts.reduceOp, tensor.dtype)
        if not plain:
            return self._allreduce_slowly(tensor, opts)
        address = tensor.data_ptr()
        sync = self._batch is None and (self._alone or not opts.asyncOp)
        limit = self._limit if self._alone else self._limit_of(opts)
        count = tensor.numel()
        running = addresses.all_reduce(
            self.members, address, address, count, code, op, keep=tensor, sync=sync, timeout=limit
        )
        if sync:
            return FinishedWork([tensor], True)
        work = PendingWork(running, [tensor])
        if count <= _TINY:
            self._recent.append(work)
        return self._started(work)

    def _allreduce_slowly(self, tensor: torch.Tensor, opts: Any) -> Any:
        if (other := self._other(tensor)) is not None:
            return other.allreduce([tensor], opts)
        limit = self._limit_of(opts)
        if tensor.layout is not torch.strided:
            sparse.all_reduce(self.members, tensor, opts.reduceOp, limit)
            return self._started(FinishedWork([tensor]))
        return self._run(operations.all_reduce(self._of(tensor), tensor, opts.reduceOp, limit), opts)

    @_whole
    @recorded("all_reduce", _first)
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        """Reduces each tensor in place; one Work for all."""
        opts = _c10d.AllreduceCoalescedOptions() if opts is None else opts
        if (other := self._other(tensors[0])) is not None:
            return other.allreduce_coalesced(list(tensors), opts)
        if len(tensors) > 1 and operations.share_memory(tensors):
            return self._allreduce_copies(tensors, opts)
        return self._allreduce_all(tensors, opts)

    def _allreduce_all(self, tensors: Tensors, opts: Any) -> Any:
        limit = self._limit_of(opts)
        return self._all([operations.all_reduce(self._of(t), t, opts.reduceOp, limit) for t in tensors], opts)

    def _allreduce_copies(self, tensors: Tensors, opts: Any) -> Any:
        """For tensors that share memory: each is reduced as it was before the call. Waits, also if it need not."""
        for tensor in tensors:
            by = self._of(tensor), "all_reduce", self._limit_of(opts), None
            operations.await_earlier(tensor, by, writes=True)
        copies = [tensor.detach().clone() for tensor in tensors]
        batch, self._batch = self._batch, None
        try:
            self._allreduce_all(copies, opts).wait()
        finally:
            self._batch = batch
        for tensor, copy in zip(tensors, copies, strict=True):
            tensor.detach().copy_(copy)
        return self._started(FinishedWork(list(tensors)))

    @_whole
    @recorded("reduce", _first)
    def reduce(self, tensors: Tensors, opts: Any) -> Any:
        """Reduces ``tensors[0]`` onto ``opts.rootRank``; elsewhere it stays as it is."""
        if (other := self._other(tensors[0])) is not None:
            return other.reduce(list(tensors), opts)
        limit = self._limit_of(opts)
        ready = operations.reduce(self._of(tensors[0]), tensors[0], opts.reduceOp, opts.rootRank, limit)
        return self._run(ready, opts)

    @_whole
    @recorded("reduce_scatter", lambda _, inputs, *__: inputs[0])
    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Any:
        """``outputs[i]`` = this rank's block of the reduction of the list ``inputs[i]``, one block per rank."""
        opts = _c10d.ReduceScatterOptions() if opts is None else opts
        if (other := self._other(outputs[0])) is not None:
            return other.reduce_scatter(list(outputs), [list(i) for i in inputs], opts)
        limit = self._limit_of(opts)
        ready = [
            operations.reduce_scatter(self._of(out), out, ins, opts.reduceOp, limit)
            for out, ins in zip(outputs, inputs, strict=True)
        ]
        return self._all(ready, opts)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """``output`` = this rank's block of the reduction of ``input``, which holds all blocks."""
        opts = _c10d.ReduceScatterOptions() if opts is None else opts
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """`reduce_scatter_single` for each pair; one Work for all."""
        opts = _c10d.ReduceScatterOptions() if opts is None else opts
        if (other := self._other(outputs[0])) is not None:
            return other.reduce_scatter_tensor_coalesced(list(outputs), list(inputs), opts)
        return self.reduce_scatter(outputs, [[tensor] for tensor in inputs], opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- moving data

    @_whole
    @recorded("broadcast", _first)
    def broadcast(self, tensors: Tensors, opts: Any) -> Any:
        """``tensors[0]`` = that of ``opts.rootRank``."""
        if (other := self._other(tensors[0])) is not None:
            return other.broadcast(list(tensors), opts)
        limit = self._limit_of(opts)
        return self._run(operations.broadcast(self._of(tensors[0]), tensors[0], opts.rootRank, limit), opts)

    @_whole
    @recorded("all_gather", _second)
    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """``outputs[i][r]`` = rank r's ``inputs[i]``; ranks may differ in size."""
        opts = _c10d.AllgatherOptions() if opts is None else opts
        if (other := self._other(inputs[0])) is not None:
            return other.allgather([list(o) for o in outputs], list(inputs), opts)
        limit = self._limit_of(opts)
        ready = [
            operations.all_gather(self._of(tensor), outs, tensor, limit)
            for outs, tensor in zip(outputs, inputs, strict=True)
        ]
        return self._all(ready, opts)

    @_whole
    @recorded("all_gather", _second)
    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """``outputs[r][i]`` = rank r's ``inputs[i]``."""
        # c10d gives the outputs by rank, then by tensor
        return self.allgather(list(zip(*outputs, strict=True)), inputs, opts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """``output`` = every rank's ``input``, one after another."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """`all_gather_single` for each pair; one Work for all."""
        opts = _c10d.AllgatherOptions() if opts is None else opts
        if (other := self._other(inputs[0])) is not None:
            return other.allgather_into_tensor_coalesced(list(outputs), list(inputs), opts)
        return self.allgather([[tensor] for tensor in outputs], inputs, opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @_whole
    @recorded("gather", _second)
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Any:
        """``outputs[0][r]`` on ``opts.rootRank`` = rank r's ``inputs[0]``."""
        if (other := self._other(inputs[0])) is not None:
            return other.gather([list(o) for o in outputs], list(inputs), opts)
        outs = outputs[0] if outputs else []
        limit = self._limit_of(opts)
        return self._run(operations.gather(self._of(inputs[0]), outs, inputs[0], opts.rootRank, limit), opts)

    @_whole
    @recorded("scatter", lambda _, inputs, *__: inputs[0] if inputs else [])
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Any:
        """``outputs[0]`` = this rank's of the list ``inputs[0]`` on ``opts.rootRank``."""
        if (other := self._other(outputs[0])) is not None:
            return other.scatter(list(outputs), [list(i) for i in inputs], opts)
        ins = inputs[0] if inputs else []
        limit = self._limit_of(opts)
        return self._run(
            operations.scatter(self._of(outputs[0]), outputs[0], ins, opts.rootRank, limit), opts
        )

    @_whole
    @recorded("all_to_all", _second)
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """``inputs[p]`` goes to rank p; ``outputs[p]`` comes from it."""
        opts = _c10d.AllToAllOptions() if opts is None else opts
        if (other := self._other(inputs[0])) is not None:
            return other.alltoall(list(outputs), list(inputs), opts)
        size = self.members.size
        if len(outputs) != size or len(inputs) != size:
            raise ValueError(f"all_to_all needs {size} input and {size} output tensors, one per rank")
        received, sent = [t.numel() for t in outputs], [t.numel() for t in inputs]
        limit = self._limit_of(opts)
        return self._run(
            operations.all_to_all(self._of(inputs[0]), outputs, inputs, received, sent, limit), opts
        )

    @_whole
    @recorded("all_to_all", lambda _, input, *__: [input])
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Any:
        """Rows of ``input`` go to each rank, rows of ``output`` come from it: as the splits say, default equally."""
        opts = _c10d.AllToAllOptions() if opts is None else opts
        if (other := self._other(input)) is not None:
            return other.alltoall_base(output, input, list(output_splits), list(input_splits), opts)
        received, sent = self._split(output, output_splits), self._split(input, input_splits)
        limit = self._limit_of(opts)
        return self._run(
            operations.all_to_all(self._of(input), [output], [input], received, sent, limit), opts
        )

    alltoall_base = all_to_all_single

    def _split(self, tensor: torch.Tensor, splits: Sequence[int]) -> list[int]:
        """Elements for each rank of a tensor that is divided along dim 0."""
        size = self.members.size
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % size:
                raise ValueError(
                    f"Tensor's dim 0 does not divide equally across group size: {rows} rows, {size} ranks"
                )
            splits = [rows // size] * size
        if len(splits) != size or sum(splits) != rows or min(splits) < 0:
            raise ValueError(
                f"Split sizes {list(splits)} do not match total dim 0 size {rows} of {size} ranks"
            )
        width = tensor.numel() // rows if rows else 0
        return [n * width for n in splits]

    # ---- between two ranks

    @_whole
    @recorded("send", _first)
    def send(self, tensors: Tensors, dst: int, tag: int) -> Any:
        """Sends ``tensors[0]`` to rank ``dst`` of the group."""
        if (other := self._other(tensors[0])) is not None:
            return other.send(list(tensors), dst, tag)
        return self._run(operations.send(self._of(tensors[0]), tensors[0], dst, tag, self._limit))

    @_whole
    @recorded("recv", _first)
    def recv(self, tensors: Tensors, src: int, tag: int) -> Any:
        """Receives into ``tensors[0]`` what rank ``src`` of the group sends with this tag."""
        if (other := self._other(tensors[0])) is not None:
            return other.recv(list(tensors), src, tag)
        return self._run(operations.recv(self._of(tensors[0]), tensors[0], src, tag, self._limit))

    @_whole
    @recorded("recvAnySource", _first)
    def recv_anysource(self, tensors: Tensors, tag: int) -> Any:
        """Receives into ``tensors[0]`` what the first rank sends with this tag; the Work tells which."""
        if (other := self._other(tensors[0])) is not None:
            return other.recv_anysource(list(tensors), tag)
        return self._run(operations.recv_any(self._of(tensors[0]), tensors[0], tag, self._limit))

    # ---- barriers, and the end

    @_whole
    @recorded("barrier", lambda *_: [])
    def barrier(self, opts: Any = None) -> Any:
        """Done once every rank has called it."""
        opts = _c10d.BarrierOptions() if opts is None else opts
        device = opts.device
        if device is not None and device.type in self._others:
            return self._others[device.type].barrier(opts)
        sync = self._batch is None and (self._alone or not opts.asyncOp)
        running = addresses.barrier(self.members, sync=sync, timeout=self._limit_of(opts))
        if sync:
            return FinishedWork([])
        return self._started(PendingWork(running, []))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """As `torch.distributed.monitored_barrier`: says which ranks did not come, and leaves the group usable."""
        seconds = timeout.total_seconds() if timeout is not None else self._limit
        monitored_barrier(self._store, self.members, seconds, wait_all_ranks)

    def shutdown(self) -> None:
        """Leaves the job if the group is that of all its ranks; operations that still run fail with Aborted."""
        for other in self._others.values():
            other.shutdown()
        if self._owned is not None:
            self._owned.close()

    def abort(self) -> None:
        """Fails what runs in the job, on this rank and all others, with Aborted."""
        for other in self._others.values():
            other.abort()
        self.members.session.abort(
            f"rank {self.members.rank} aborted the process group {self._name or 'of all ranks'}"
        )
