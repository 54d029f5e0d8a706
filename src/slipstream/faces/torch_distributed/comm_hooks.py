"""Compressed gradients for DistributedDataParallel, as a communication hook.

The hook runs in backward's thread, where it starts the reductions of a bucket. A thread of the hook's own ends them,
one bucket after another, in the order in which they were started. It ends when the job is left: the interpreter joins
the threads of an executor before it leaves the job, so a rank that fails would wait there for the others.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from slipstream.base.dtypes import DType, Op, name_of
from slipstream.base.own_names import own_name
from slipstream.comm.membership.group import Group
from slipstream.comm.membership.job import Job
from slipstream.faces.torch_distributed.group import SlipstreamGroup, limit_of
from slipstream.faces.torch_tensors import dtype_code
from slipstream.gradients.agreement import check_compressions, description
from slipstream.gradients.buckets import Bucket, GradientPlace, Parameter, bucket_of
from slipstream.gradients.compression import EXACT
from slipstream.gradients.policy import Policy
from slipstream.gradients.reductions import Reduction, Terms
from slipstream.gradients.states import Saved, States, check_kind, check_state, saved_of
from slipstream.gradients.ways import reduction_of

__all__ = ["DdpGradients"]

# Who calls something else meanwhile has no hook: the error has this text.
_COMPARISON = own_name("the first bucket of DDP's communication hook, which all ranks have to register")
_LEAVE = 5.0  # seconds for what a callback of a future still does


@dataclass(frozen=True)
class _Layout:
    """What one bucket of DDP consists of, and how it is reduced.

    ``exact``: gradients that are reduced apart, as pairs of where they are and a copy.
    """

    key: tuple[Any, ...]
    reductions: list[Reduction]
    exact: list[tuple[torch.Tensor, torch.Tensor]]

    def start(self, group: Group) -> None:
        """Begins to reduce the gradients."""
        for gradient, copy in self.exact:
            copy.copy_(gradient)
            gradient.zero_()  # it must not widen the scale of a block of its neighbours
        for reduction in self.reductions:
            reduction.start(group)

    def finish(self) -> None:
        """Waits for the averages, which are in DDP's bucket then."""
        for reduction in self.reductions:
            reduction.go_on()
        for reduction in self.reductions:
            reduction.finish()
        for gradient, copy in self.exact:
            gradient.copy_(copy)


def _group_of(process_group: Any) -> SlipstreamGroup:
    """A c10d process group (None: the default one). ValueError if there is none, TypeError if it is not ours."""
    found = dist.group.WORLD if process_group is None else process_group
    if isinstance(found, SlipstreamGroup):
        return found
    if found is None:
        raise ValueError("there is no process group yet: call init_process_group first")
    raise TypeError(
        f"comm_hooks compress for process groups of slipstream, and this one uses {dist.get_backend(found)}: "
        "init_process_group('slipstream'), or slipstream run --replace gloo"
    )


_Ends: TypeAlias = "queue.SimpleQueue[Callable[[], None] | None]"


def _end_in_order(ends: _Ends) -> None:
    for end in iter(ends.get, None):
        end()
        del end  # it holds tensors, and the next one may be long in coming


class _Ender:
    """A thread that makes calls one after another, until the job is left or nobody has the ender any more."""

    def __init__(self, job: Job) -> None:
        ends: _Ends = queue.SimpleQueue()
        thread = threading.Thread(target=_end_in_order, args=(ends,), name="slipstream DDP", daemon=True)
        self.call = ends.put
        weakref.finalize(self, ends.put, None).atexit = False
        job.when_left(lambda: _leave(ends, thread))
        thread.start()


def _leave(ends: _Ends, thread: threading.Thread) -> None:
    """Ends the thread: the interpreter's end would find it with tensors, and PyTorch would end the process."""
    ends.put(None)
    if thread is not threading.current_thread():
        thread.join(_LEAVE)  # what it waits for has failed with the job


class DdpGradients:
    """The gradients of a model that DDP wraps: averages its buckets, each gradient in the way ``policy`` says.

    ``names`` are the parameters' names, by the id of the parameter.
    """

    def __init__(self, policy: Policy, params: Mapping[str, torch.Tensor], process_group: Any) -> None:
        self._policy = policy
        self._parameters = {
            id(param): Parameter(i, param.numel(), DType(dtype_code(param)), name, tuple(param.shape))
            for i, (name, param) in enumerate(params.items())
        }
        found = _group_of(process_group)
        self._members = found.members
        # a channel of its own: other operations of the process group may run beside it, in whatever order
        self._group = found.members.beside("the compressed gradients of DDP")
        self._terms = Terms(int(Op.AVG), timeout=limit_of(found))
        self._states = States()
        self._compared = False
        self._layouts: dict[int, _Layout] = {}
        self._ender = _Ender(self._group.job)

    def average(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Starts to average a `torch.distributed.GradBucket`; a future of its buffer."""
        self._compare()
        buffer = bucket.buffer()
        layout = self._layout(bucket, buffer)
        with torch.no_grad():
            layout.start(self._group)
        ended: torch.futures.Future[Any] = torch.futures.Future()
        errors: list[Exception] = []

        def result(_: Any) -> torch.Tensor:
            if errors:  # C++ sees an error that is raised here, and none that Python sets
                raise errors[0]
            return buffer  # type: ignore[no-any-return]

        averaged = ended.then(result)

        def end() -> None:
            try:
                with torch.no_grad():
                    layout.finish()
            except Exception as error:
                errors.append(error)
            ended.set_result(None)

        self._ender.call(end)
        return averaged

    def state_dict(self) -> Saved:
        """What compressions remember of each parameter on this rank, as copies; between steps."""
        return saved_of(self._policy.way, self._states.copies(list(self._parameters.values())))

    def load_state_dict(self, saved: Saved) -> None:
        """Takes over what `state_dict` returned on this rank; ValueError if it does not fit."""
        check_kind(saved, self._policy.way)
        check_state(saved["parameters"], list(self._parameters.values()))
        self._states.take_over(saved["parameters"])

    def _compare(self) -> None:
        """In the first bucket of all, in which all ranks are: Mismatch on all of them if they compress differently."""
        if self._compared:
            return
        self._compared = True
        # in the group of DDP: a rank without a hook averages a bucket there
        group, parameters = self._members, self._parameters.values()
        described = [description(one.name, one.shape, name_of(one.dtype)) for one in parameters]
        ways = [f"{self._policy.asked_of(one, group, int(Op.AVG))}" for one in parameters]
        of_all, limit = str(self._policy.of_all(group)), self._terms.timeout
        check_compressions(of_all, ways, described, group, limit, _COMPARISON)
        self._policy.tell_of_no_effect(group)

    def _layout(self, bucket: Any, buffer: torch.Tensor) -> _Layout:
        """Kept while DDP keeps the bucket; it makes new ones after the first step."""
        params, number = bucket.parameters(), bucket.index()
        key = (buffer.data_ptr(), *map(id, params))
        found = self._layouts.get(number)
        if found is None or found.key != key:
            if not buffer.is_cpu:
                raise ValueError(
                    f"comm_hooks compress gradients in CPU memory, and these are on {buffer.device}"
                )
            found = self._layouts[number] = self._lay_out(key, number, buffer, params, bucket.gradients())
        return found

    def _lay_out(
        self, key: tuple[Any, ...], number: int, buffer: torch.Tensor, params: Any, gradients: Any
    ) -> _Layout:
        own = DType(dtype_code(buffer))
        label = f"bucket {number} of DDP"
        memory = buffer.view(torch.uint8).numpy()
        places = [
            GradientPlace(replace(self._parameter(param), dtype=own), gradient.data_ptr())
            for param, gradient in zip(params, gradients, strict=True)
        ]
        ways = [self._policy.way_of(place.parameter, self._group, int(Op.AVG)) for place in places]
        ways = [way if way.dtype(own) is own else EXACT for way in ways]
        way = next((one for one in ways if one != EXACT), EXACT)
        if way == EXACT:
            whole = Bucket(memory, places, label)
            return _Layout(key, [reduction_of(whole, self._terms, self._states)], [])
        sent = [
            GradientPlace(replace(place.parameter, way=way), place.address)
            for place, one in zip(places, ways, strict=True)
            if one == way
        ]
        reductions = [reduction_of(Bucket(memory, sent, f"{label} by {way}"), self._terms, self._states)]
        exact: list[tuple[torch.Tensor, torch.Tensor]] = []
        apart = [
            (place.parameter, g) for place, one, g in zip(places, ways, gradients, strict=True) if one != way
        ]
        if apart:
            side = bucket_of([parameter for parameter, _ in apart], self._group, f"{label}, exact")
            reductions.append(reduction_of(side, self._terms, self._states))
            copies = [torch.from_numpy(view) for _, view in side.gradients()]
            exact = [(g, copy.view_as(g)) for (_, g), copy in zip(apart, copies, strict=True)]
        return _Layout(key, reductions, exact)

    def _parameter(self, param: torch.Tensor) -> Parameter:
        found = self._parameters.get(id(param))
        if found is None:
            raise ValueError("the hook was given another model than the one that DDP wraps")
        return found
