"""Process sets: Horovod's name for groups of ranks, on top of `slipstream.comm.Group`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from slipstream import comm as _comm
from slipstream.comm.negotiation.negotiator import forget
from slipstream.faces.horovod.words import NOT_INITIALIZED, SHUT_DOWN, in_horovods_words

__all__ = [
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "process_set_of",
    "remove_process_set",
    "require_init",
]


def require_init() -> None:
    """ValueError before `init`, as Horovod has it."""
    if _comm.is_initialized():
        return
    if _shut_down:
        text, words = "has been shut down: call hvd.init() again.", f"{SHUT_DOWN}. {NOT_INITIALIZED}"
    else:
        text, words = "has not been initialized: call hvd.init() first.", NOT_INITIALIZED
    raise ValueError(in_horovods_words(f"slipstream {text}", words))


class ProcessSet:
    """Some of the ranks of the job, which run operations among themselves.

    Made from the ranks (any iterable of ints, in any order); usable once registered, by `init` or
    `add_process_set`. ``process_set_id`` is None until then, ``ranks`` the sorted ranks.

    >>> first = hvd.add_process_set(hvd.ProcessSet([0]))
    >>> first.included()  # on rank 0
    True
    >>> hvd.remove_process_set(first)
    True
    """

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        if hasattr(ranks_or_comm, "Get_size"):
            raise ValueError(
                "a process set is made from a list of ranks; MPI communicators are not supported"
            )
        self.ranks: list[int] | None = sorted({int(rank) for rank in ranks_or_comm})
        self.process_set_id: int | None = None
        self._group: Any = None

    @property
    def group(self) -> Any:
        """The `slipstream.comm.Group`; ValueError when not registered, or when this rank is not a member."""
        if self._group is None:
            if self.process_set_id is None:
                raise ValueError(f"{self!r} is not registered; use hvd.add_process_set().")
            raise ValueError(f"rank {_comm.rank()} is not in {self!r}")
        return self._group

    def on(self, group: Any) -> ProcessSet:
        """This set with another group of the same ranks."""
        other = ProcessSet(group.ranks)
        other._group, other.process_set_id = group, self.process_set_id
        return other

    def size(self) -> int | None:
        """Number of ranks in the set, None when it is not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """This process's number in the set; None when it is not a member or the set is not registered."""
        if self.process_set_id is None or self.ranks is None or not self.included():
            return None
        return self.ranks.index(_comm.rank())

    def included(self) -> bool | None:
        """Whether this process is a member; None when the set is not registered."""
        if self.process_set_id is None or self.ranks is None:
            return None
        return _comm.rank() in self.ranks

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    def __str__(self) -> str:
        return f"{repr(self)[:-1]}, mpi_comm=None)"  # what programs may know from Horovod

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcessSet):
            return NotImplemented
        return self.process_set_id == other.process_set_id and self.ranks == other.ranks

    __hash__ = object.__hash__

    def _attach(self, number: int) -> None:
        assert self.ranks is not None
        self._group = _comm.Group(self.ranks) if _comm.rank() in self.ranks else None
        self.process_set_id = number

    def _detach(self) -> None:
        if self._group is not None:
            forget(self._group)
        self._group = None
        self.process_set_id = None


class _GlobalProcessSet(ProcessSet):
    """All ranks. Its group is asked for each time, so it follows the session through shutdown and init."""

    def __init__(self) -> None:
        super().__init__([])
        self.ranks = None
        self.process_set_id = 0

    @property
    def group(self) -> Any:
        if not _comm.is_initialized():
            require_init()
        return _comm.world()

    def size(self) -> int | None:
        return int(_comm.size()) if _comm.is_initialized() else None

    def rank(self) -> int | None:
        return int(_comm.rank()) if _comm.is_initialized() else None

    def included(self) -> bool | None:
        return True if _comm.is_initialized() else None


global_process_set: ProcessSet = _GlobalProcessSet()

_registered: dict[int, ProcessSet] = {}
_next_id = 1
_shut_down = False  # the last job, by `hvd.shutdown`


def start(process_sets: Sequence[ProcessSet | Sequence[int]]) -> None:
    """Called by init: registers the sets of its argument."""
    global _shut_down
    stop()
    _shut_down = False
    global_process_set.ranks = list(range(_comm.size()))
    for process_set in process_sets:
        add_process_set(process_set)


def stop() -> None:
    """Called by shutdown: no set is registered any longer."""
    global _next_id, _shut_down
    _shut_down = _shut_down or global_process_set.ranks is not None
    for process_set in _registered.values():
        process_set._detach()
    _registered.clear()
    _next_id = 1
    global_process_set.ranks = None


def registered() -> dict[int, list[int]]:
    """The ranks of every set, by its number; ValueError before `init`."""
    require_init()
    found = {number: list(one.ranks or ()) for number, one in _registered.items()}
    return {0: list(range(_comm.size())), **found}


def process_set_of(ranks: Sequence[int] | None) -> ProcessSet:
    """The registered set of these ranks; None: of all. ValueError before `init`, and if there is none."""
    require_init()
    if ranks is None:
        return global_process_set
    for one in _registered.values():
        if one.ranks == list(ranks):
            return one
    raise ValueError(f"no process set of the ranks {list(ranks)} is registered; use hvd.add_process_set().")


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a set of ranks; every rank of the job calls it, with the same ranks, in the same order.

    Returns the set. Raises ValueError before `init`, and when it is empty, names a rank that is not there, equals a
    registered set, or is registered already.

    >>> first = hvd.add_process_set([0])
    >>> first.ranks
    [0]
    >>> hvd.remove_process_set(first)
    True
    """
    global _next_id
    require_init()
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    size = _comm.size()
    ranks = process_set.ranks
    if process_set.process_set_id is not None:
        raise ValueError(f"{process_set!r} is registered already")
    if not ranks or ranks[0] < 0 or ranks[-1] >= size:
        raise ValueError(f"{process_set!r}: the ranks must be some of 0..{size - 1}")
    if len(ranks) == size or any(other.ranks == ranks for other in _registered.values()):
        raise ValueError(f"a process set with the ranks {ranks} exists already")
    process_set._attach(_next_id)
    _registered[_next_id] = process_set
    _next_id += 1
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Takes a set off the register; every rank of the job calls it. Returns whether there was anything to
    remove.

    >>> hvd.remove_process_set(hvd.add_process_set([1]))
    True
    """
    number = process_set.process_set_id
    if number is None or number == 0 or _registered.get(number) is not process_set:
        return False
    del _registered[number]
    process_set._detach()
    return True
