"""A communicator: ranks that communicate, with the methods of mpi4py that take Python objects."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, NoReturn

from slipstream.comm.collectives import arrays
from slipstream.comm.membership import job as jobs
from slipstream.comm.membership.group import Group, world
from slipstream.faces.mpi import objects
from slipstream.faces.mpi.ops import SUM, UNDEFINED, Op

__all__ = ["COMM_NULL", "COMM_SELF", "COMM_WORLD", "Comm", "Intracomm"]

_PURPOSE = "objects of MPI"


class Comm:
    """Ranks of the job. The methods of objects run at once, and in an order of their own: JAX's are beside them.

    ``ranks``: "world", "self", or the group. COMM_WORLD joins the job when it is used first.
    """

    def __init__(self, ranks: Group | str) -> None:
        self._ranks = ranks
        self._found: tuple[Any, Group, Group] | None = None

    def _groups(self) -> tuple[Group, Group]:
        """That of JAX's operations, and that of objects."""
        if isinstance(self._ranks, Group):
            if self._found is None:
                self._found = (self._ranks.job, self._ranks, self._ranks.beside(_PURPOSE))
            return self._found[1:]
        jobs.init()
        job = jobs.current()
        if self._found is None or self._found[0] is not job:
            group = world() if self._ranks == "world" else Group([job.rank])
            self._found = (job, group, group.beside(_PURPOSE))
        return self._found[1:]

    @property
    def slipstream_group(self) -> Group:
        """The group whose operations JAX runs."""
        return self._groups()[0]

    def __repr__(self) -> str:
        return f"<mpi4py.MPI.Intracomm of slipstream: {self._ranks}>"

    def Get_rank(self) -> int:
        """This process's number in the communicator."""
        return self.slipstream_group.rank

    def Get_size(self) -> int:
        """How many processes it has."""
        return self.slipstream_group.size

    rank = property(Get_rank)
    size = property(Get_size)
    is_inter = False
    is_intra = True

    def Clone(self) -> Intracomm:
        """The same ranks once more: what runs on the one is apart from what runs on the other. All ranks call it."""
        group = self.slipstream_group
        return Intracomm(Group(group.ranks, job=group.job))

    Dup = Clone

    def Split(self, color: int = 0, key: int = 0) -> Intracomm | _Null:
        """The ranks with this rank's ``color``, in order of ``key``; COMM_NULL for UNDEFINED. All ranks call it."""
        group = self.slipstream_group
        told = objects.all_gathered(self._groups()[1], "Split", (operator.index(color), operator.index(key)))
        if color == UNDEFINED:
            return COMM_NULL
        chosen = sorted((key, rank) for rank, (other, key) in enumerate(told) if other == color)
        return Intracomm(Group([group.ranks[rank] for _, rank in chosen], job=group.job))

    def Free(self) -> None:
        """Does nothing: what a communicator keeps goes with the job."""

    def Barrier(self) -> None:
        """Is over once all ranks have called it."""
        arrays.barrier(group=self._groups()[1])

    barrier = Barrier

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """The root's object, on all ranks."""
        return objects.broadcast(self._groups()[1], "bcast", obj, self._root(root))

    def allgather(self, sendobj: Any) -> list[Any]:
        """The objects of all ranks, in order of rank."""
        return objects.all_gathered(self._groups()[1], "allgather", sendobj)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """The objects of all ranks on the root, None elsewhere."""
        root = self._root(root)
        told = objects.all_gathered(self._groups()[1], "gather", sendobj)
        return told if self.Get_rank() == root else None

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """One object of the root's sequence for each rank. Raises ValueError on the root if it has another length."""
        rank, size = self.Get_rank(), self.Get_size()
        if rank == self._root(root) and (sendobj is None or len(sendobj) != size):
            raise ValueError(f"scatter needs a sequence of {size} objects on the root")
        return objects.broadcast(self._groups()[1], "scatter", sendobj, root)[rank]

    def allreduce(self, sendobj: Any, op: Op = SUM) -> Any:
        """The objects of all ranks, reduced in order of rank."""
        return functools.reduce(op, self.allgather(sendobj))

    def reduce(self, sendobj: Any, op: Op = SUM, root: int = 0) -> Any:
        """As `allreduce`, on the root; None elsewhere."""
        told = self.gather(sendobj, root)
        return None if told is None else functools.reduce(op, told)

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """Ends the job on all ranks, and this process with that code, or with 1."""
        self.slipstream_group.abort(f"MPI's Abort({errorcode})")
        raise SystemExit(errorcode or 1)

    def _root(self, root: int) -> int:
        if not 0 <= operator.index(root) < self.Get_size():
            raise ValueError(f"root {root} is not a rank of a communicator of {self.Get_size()}")
        return root

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"slipstream stands in for mpi4py here, and its communicators have no {name}: "
            "docs/mpi4jax.md lists what they have. Arrays go by mpi4jax's functions"
        )


class Intracomm(Comm):
    """The kind that all communicators here are of."""


class _Null:
    """COMM_NULL: of the ranks that are in no communicator."""

    def __repr__(self) -> str:
        return "COMM_NULL"

    def __bool__(self) -> bool:
        return False


COMM_WORLD, COMM_SELF = Intracomm("world"), Intracomm("self")
COMM_NULL = _Null()
