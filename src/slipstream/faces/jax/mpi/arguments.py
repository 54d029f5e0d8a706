"""The arguments of mpi4jax's functions: ours, and those of mpi4py where that is loaded."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import jax
import numpy as np

from slipstream import _core
from slipstream.base.dtypes import Op as Reduction
from slipstream.comm.membership import job as jobs
from slipstream.comm.membership.group import Group
from slipstream.faces.mpi.communicator import COMM_WORLD, Comm
from slipstream.faces.mpi.ops import ANY_SOURCE, ANY_TAG, PROC_NULL, Op, Status

__all__ = ["NOTSET", "as_group", "as_op", "as_rank", "as_source", "as_status", "as_tag", "check_token"]

NOTSET: Any = object()
_OPS = ("SUM", "PROD", "MAX", "MIN", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR")
_known: weakref.WeakSet[jobs.Job] = weakref.WeakSet()  # jobs that let JAX end before they do


def check_token(token: Any) -> None:
    """RuntimeError if there is one."""
    if token is not NOTSET:
        raise RuntimeError(
            "mpi4jax 0.8 and later have no tokens, and so has slipstream: leave token= out, and take the result alone "
            "(`x = allreduce(x, op=MPI.SUM)`, not `x, token = ...`)"
        )


def _mpi4py() -> Any:
    """The module of the real mpi4py, if the program has loaded it."""
    loaded = sys.modules.get("mpi4py.MPI")
    return loaded if hasattr(loaded, "_handleof") else None


def as_group(function: str, comm: Any) -> Group:
    """The group of a communicator; None: of all ranks. TypeError for anything else."""
    group = _group(function, COMM_WORLD if comm is None else comm)
    if group.job not in _known:
        _known.add(group.job)
        group.job.before_leaving(jax.effects_barrier)
        group.job.when_left(_core.xla_forget_messages)
    return group


def _group(function: str, comm: Any) -> Group:
    if isinstance(comm, Group):
        return comm
    if isinstance(comm, Comm):
        return comm.slipstream_group
    real = _mpi4py()
    if real is not None and isinstance(comm, real.Intracomm):
        return _group_of_mpi4py(real, comm)
    raise TypeError(
        f"{function}: comm must be a communicator (MPI.COMM_WORLD, say), not {type(comm).__name__}"
    )


_translated: weakref.WeakKeyDictionary[jobs.Job, dict[tuple[int, ...], Group]] = weakref.WeakKeyDictionary()


def _group_of_mpi4py(real: Any, comm: Any) -> Group:
    """The group of the same ranks. Two communicators of the same ranks have one: all operations run in one order."""
    jobs.init()
    job, everyone = jobs.current(), real.COMM_WORLD
    if (everyone.Get_rank(), everyone.Get_size()) != (job.rank, job.size):
        raise ValueError(
            f"mpi4py says that this is rank {everyone.Get_rank()} of {everyone.Get_size()}, and slipstream rank "
            f"{job.rank} of {job.size}: start the program by mpirun, or by slipstream run --mpi4jax"
        )
    mine = comm.Get_group()
    ranks = tuple(real.Group.Translate_ranks(mine, list(range(mine.Get_size())), everyone.Get_group()))
    groups = _translated.setdefault(job, {})
    if ranks == tuple(range(job.size)):
        return COMM_WORLD.slipstream_group
    if ranks not in groups:
        groups[ranks] = Group(ranks, job=job)
    return groups[ranks]


def as_op(function: str, op: Any) -> tuple[int, bool]:
    """The engine's number of a reduction, and whether it is of truth values. TypeError for anything else."""
    if isinstance(op, Op):
        return int(op.code), op.logical
    if isinstance(op, Reduction):
        return int(op), False
    real = _mpi4py()
    if real is not None and isinstance(op, real.Op):
        for name in _OPS:
            if op == getattr(real, name):
                return int(Reduction["B" + name[1:] if name[0] == "L" else name]), name[0] == "L"
        raise TypeError(f"{function}: slipstream has no reduction {op}: take one of {', '.join(_OPS)}")
    raise TypeError(f"{function}: op must be a reduction (MPI.SUM, say), not {type(op).__name__}")


def _whole(function: str, name: str, value: Any) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    cure = ": it has to be known when the function is traced; see static_argnums of jax.jit"
    traced = isinstance(value, jax.core.Tracer)
    raise TypeError(f"{function}: {name} must be an int, not {type(value).__name__}{cure if traced else ''}")


def as_rank(function: str, name: str, value: Any, group: Group, *, nobody: bool = False) -> int:
    """A rank of the group; also PROC_NULL with ``nobody``. TypeError, ValueError."""
    rank = _whole(function, name, value)
    if nobody and _names("PROC_NULL", PROC_NULL, rank):
        return PROC_NULL
    if not 0 <= rank < group.size:
        raise ValueError(f"{function}: {name} {rank} is not a rank of a communicator of {group.size}")
    return rank


def _names(name: str, ours: int, value: int) -> bool:
    """Whether ``value`` is that constant: of mpi4py if it is loaded, whose numbers depend on the library."""
    return value == getattr(_mpi4py(), name, ours)


def as_source(function: str, value: Any, group: Group) -> int:
    """A rank, or PROC_NULL. ANY_SOURCE is the other rank where there is just one; else ValueError."""
    if _names("ANY_SOURCE", ANY_SOURCE, _whole(function, "source", value)):
        if group.size != 2:
            raise ValueError(
                f"{function}: slipstream needs the source of a message among {group.size} ranks: "
                f"{function}(..., source=RANK). MPI.ANY_SOURCE works where there is one other rank"
            )
        return 1 - group.rank
    return as_rank(function, "source", value, group, nobody=True)


def as_tag(function: str, name: str, value: Any, *, any_tag: bool = False) -> int:
    """A tag from 0, or ANY_TAG with ``any_tag``; TypeError, ValueError."""
    tag = _whole(function, name, value)
    if any_tag and _names("ANY_TAG", ANY_TAG, tag):
        return ANY_TAG
    if not 0 <= tag < 1 << 31:
        raise ValueError(f"{function}: {name} {tag} is not from 0 to {(1 << 31) - 1}")
    return tag


def as_status(function: str, status: Any) -> Status | None:
    """A status of slipstream's, or None; TypeError for anything else."""
    if status is None or isinstance(status, Status):
        return status
    cure = ""
    if _mpi4py() is not None and isinstance(status, _mpi4py().Status):
        cure = " of mpi4py, which a compiled function cannot fill: take slipstream.mpi4jax.MPI.Status()"
    raise TypeError(
        f"{function}: status must be an MPI.Status of slipstream, not {type(status).__name__}{cure}"
    )
