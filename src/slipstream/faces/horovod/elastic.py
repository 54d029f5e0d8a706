"""Training that outlives lost ranks: state with commits to go back to, and the loop that goes on with the survivors.

The ranks that live start a smaller job (`slipstream.comm.Group.shrink`). Ranks that come later are not taken in.
"""

from __future__ import annotations

import copy
import functools
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from slipstream import comm as _comm
from slipstream.base.dtypes import Op
from slipstream.base.errors import Aborted, Mismatch, PeerLost, Refused, SlipstreamError
from slipstream.base.log import Log
from slipstream.comm.collectives import arrays
from slipstream.comm.membership.job import current
from slipstream.comm.membership.shrink import announce, is_of_shrink
from slipstream.faces.horovod import handles, process_sets

__all__ = ["HostsUpdatedInterrupt", "ObjectState", "State", "reform", "run_fn"]

_log = Log("slipstream.elastic")
_REMOVED = 1  # Horovod's number for hosts that go; 2: that come; 3: both


class HostsUpdatedInterrupt(RuntimeError):
    """Horovod's way to say that hosts come or go. It is raised only if the program says so (`State.on_hosts_updated`).

    `run_fn` then forms the job anew and goes on without a return to the last commit. ``skip_sync``: and without
    `State.sync`, if all ranks say so.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class State:
    """What a rank needs to go on after a failure; a face of a framework fills in `save`, `restore` and `sync`.

    ``bcast_object`` gives all ranks the object of rank 0, ``get_rank`` this process's number.

    >>> class Counter(hvd.elastic.State):
    ...     count = 0
    ...     def save(self):
    ...         self.saved = self.count
    ...     def restore(self):
    ...         self.count = self.saved
    ...     def sync(self):
    ...         self.count = hvd.broadcast_object(self.count)
    >>> counter = Counter(hvd.broadcast_object, hvd.rank)
    >>> counter.commit()
    >>> counter.saved
    0
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], object]] = []
        self._commits = 0
        self._updates: deque[tuple[float, int]] = deque()  # of the hosts, that no commit has seen
        self._updated = 0.0  # when the latest was that one has

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Has these called, in this order, each time the job has become another one, before the ranks synchronise.

        `hvd.rank` and `hvd.size` are those of the new job then: a place to scale the learning rate anew.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called by `run_fn` in the new job: `reset`, then the callbacks."""
        self._updates.clear()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Keeps the state as it is, in memory: what a failure from now on goes back to."""
        self.save()
        self._commits += 1
        self.check_host_updates()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Tells the next `commit` on this rank that hosts come (``update_res`` 2), go (1), or both (3).

        ``timestamp``: seconds; what is not later than the latest that a commit has seen is ignored. slipstream never
        calls it, because a job gets no new hosts. A program may, from any thread.
        """
        self._updates.append((timestamp, update_res))

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt if this rank was told so by `on_hosts_updated`; else does nothing.

        The other ranks then go back to their last commit, unless they were told, too.
        """
        before, found = self._updated, 0
        while self._updates:
            timestamp, update_res = self._updates.popleft()
            if timestamp > self._updated:
                self._updated = timestamp
                found |= update_res
        if self._updated > before:
            raise HostsUpdatedInterrupt(skip_sync=found == _REMOVED)

    def save(self) -> None:
        """Keeps a copy of the state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to the copy that `save` has kept."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the state of rank 0; every rank calls it."""
        raise NotImplementedError

    def reset(self) -> None:
        """What the state has to do in a new job before the ranks synchronise; by default nothing."""


class ObjectState(State):
    """Python objects: each keyword becomes an attribute, which the program sets.

    They must be such that `copy.deepcopy` and pickle take them.

    >>> state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, epoch=hvd.rank())
    >>> state.sync()
    >>> state.epoch
    0
    """

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = copy.deepcopy(kwargs)
        self._set_attrs(kwargs)

    def save(self) -> None:
        """Keeps copies of the objects."""
        self._saved_state = copy.deepcopy(self._objects())

    def restore(self) -> None:
        """Sets the attributes to copies of what `save` has kept."""
        self._set_attrs(copy.deepcopy(self._saved_state))

    def sync(self) -> None:
        """Gives all ranks the objects of rank 0 as they are now, and keeps copies of them."""
        objects = self._objects()
        if objects:
            objects = self._bcast_object(objects)
        if self._rank() != 0:
            self._set_attrs(objects)
        self._saved_state = copy.deepcopy(objects)

    if TYPE_CHECKING:  # the objects

        def __getattr__(self, name: str) -> Any: ...

    def _objects(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved_state}

    def _set_attrs(self, objects: dict[str, Any]) -> None:
        for name, value in objects.items():
            setattr(self, name, value)


def reform() -> None:
    """Starts a job of the ranks that live in the place of the one that has failed; each of them calls it.

    Process sets other than that of all ranks, and handles, end with the old job. Raises SlipstreamError if this rank
    cannot go on, or if fewer ranks are left than the launcher lets go on (``slipstream run --min-np``).
    """
    group = _comm.world().shrink()
    handles.forget_all()
    process_sets.start([])
    if group.size < _least():
        raise Aborted(f"training cannot go on: --min-np is {_least()}, and {group.size} ranks are left")


def _least() -> int:
    """How many ranks must be left; 0 if no launcher of slipstream has said so."""
    return current().settings.min_np or 0


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """``func(state, ...)`` such that it is called again, from the last commit, if the job fails and ranks are left.

    ``reset`` is what forms the job anew (`reform`, and what a framework adds). When ``func`` has returned, a rank waits
    until it has on all ranks, so that none is gone while others have to go back. If that fails because the others
    have left already, the result counts.

    Errors that a new job cannot help against are raised: Mismatch, Refused, Aborted; and PeerLost where `slipstream
    run` has no ``--min-np``. So is an error that comes again though no rank was lost, and no rank has committed
    anything since the last time. More than ``SLIPSTREAM_RESET_LIMIT`` resets raise SlipstreamError.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        resets = _Resets(state)
        skip_sync = False
        cause: Exception | None = None
        while True:
            results: list[Any] = []
            try:
                if isinstance(cause, SlipstreamError):
                    state.restore()
                # First: what comes next may be what fails again and again.
                skip_sync = resets.check_progress(skip_sync)
                if cause is not None:
                    state.on_reset()  # callbacks may communicate: another rank may be lost there
                if not skip_sync:
                    state.sync()
                results.append(func(state, *args, **kwargs))
                _await_others()
                return results[0]
            except _NoProgress as error:
                raise error.cause from None
            except HostsUpdatedInterrupt as interrupt:
                cause = interrupt
                skip_sync = interrupt.skip_sync
            except SlipstreamError as error:
                if not _may_go_on(error):
                    raise
                cause, skip_sync = error, False
            resets.begin(cause)
            announce(current(), str(cause))
            try:
                reset()
            except SlipstreamError as error:
                if not results:
                    raise error from cause
                _log.warning(
                    "training is complete on this rank, but other ranks may have gone back: %s", cause
                )
                return results[0]
            resets.say(cause)

    return wrapper


def _await_others() -> None:
    if _comm.is_initialized():  # else the program has left the job
        arrays.barrier()


def _may_go_on(error: SlipstreamError) -> bool:
    """Whether a new job may do better. It is the program that is wrong where ranks called different operations."""
    if not _comm.is_initialized():
        return False
    if isinstance(error, Aborted):
        return is_of_shrink(error)
    if isinstance(error, PeerLost):
        return _least() < _comm.size()
    return not isinstance(error, Mismatch | Refused)


class _NoProgress(RuntimeError):
    """An error has come again, and nothing was gained in between."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Resets:
    """How often the job was formed anew, and whether training came any further in between."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._count = 0
        self._cause: Exception | None = None
        self._size = self._rank = 0  # in the job before
        self._commits = -1  # at the last reset

    def begin(self, cause: Exception) -> None:
        """Takes note of one more; SlipstreamError if there were enough."""
        limit = current().settings.reset_limit
        if self._count >= limit:
            raise SlipstreamError(
                f"the job has been formed anew {self._count} times, and SLIPSTREAM_RESET_LIMIT={limit} allows no "
                f"more. The last error: {cause}"
            ) from cause
        self._count += 1
        self._cause, self._size, self._rank = cause, _comm.size(), _comm.rank()

    def say(self, cause: Exception) -> None:
        """Tells people on how many ranks training goes on."""
        if _comm.rank() == 0:
            before = f"formerly rank {self._rank}: " if self._rank else ""
            text = "%straining goes on from the last commit with %d of %d ranks: %s"
            _log.warning(text, before, _comm.size(), self._size, cause)

    def check_progress(self, skip_sync: bool) -> bool:
        """Whether no rank needs `State.sync`: each one says whether it does without.

        Raises _NoProgress on all ranks if no rank was lost, none has committed anything since the last reset, and none
        has called for this one.
        """
        if self._cause is None:
            return skip_sync
        commits, before = self._state._commits, self._commits
        # Other ranks may call for another one right after this one has.
        called_for = isinstance(self._cause, HostsUpdatedInterrupt)
        moved = called_for or _comm.size() < self._size or commits > before
        some_moved, some_sync = arrays.all_reduce(np.array([moved, not skip_sync]), Op.MAX)
        if not some_moved:
            raise _NoProgress(self._cause)
        self._commits = commits
        return not some_sync
