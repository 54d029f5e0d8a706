"""The functions of mpi4jax 0.8 and later, with its arguments, in and outside of `jit`.

``comm``: a communicator, default all ranks. ``token`` must not be given. All raise TypeError or ValueError for
arguments that do not fit, on the rank that gives them. What fails while it runs raises a JaxRuntimeError with
slipstream's text, where the result is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from slipstream import _core
from slipstream.base.dtypes import Op as Reduction
from slipstream.base.dtypes import from_numpy
from slipstream.comm.membership.group import Group
from slipstream.faces.jax.calls import Kind, Spec
from slipstream.faces.jax.groups import named
from slipstream.faces.jax.mpi import primitives
from slipstream.faces.jax.mpi.arguments import (
    NOTSET,
    as_group,
    as_op,
    as_rank,
    as_source,
    as_status,
    as_tag,
    check_token,
)
from slipstream.faces.mpi.ops import ANY_SOURCE, ANY_TAG, PROC_NULL

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "bcast",
    "gather",
    "has_cuda_support",
    "has_sycl_support",
    "recv",
    "reduce",
    "scan",
    "scatter",
    "send",
    "sendrecv",
]

_SCAN_TAG = -1000  # and below: of the rounds of `scan`, which no program can name


def has_cuda_support() -> bool:
    """False: arrays have to be on the CPU."""
    return False


def has_sycl_support() -> bool:
    """False: arrays have to be on the CPU."""
    return False


def _spec(kind: Kind, group: Group, *results: tuple[tuple[int, ...], Any], **fields: Any) -> Spec:
    """``results``: (shape, dtype) of each."""
    made = tuple((tuple(shape), jnp.dtype(dtype).name) for shape, dtype in results)
    return Spec(kind, group.size, named(group)[1], results=made, **fields)


def _of_parts(function: str, x: Any, group: Group) -> None:
    if x.ndim == 0 or x.shape[0] != group.size:
        raise ValueError(
            f"{function.capitalize()} input must have shape (nproc, ...): the first of {x.shape} is not {group.size}"
        )


def _reduced(function: str, x: Any, op: Any, run: Callable[[Any, int], Any]) -> Any:
    """``run(x, code of op)``; of truth values as of integers of one byte."""
    code, logical = as_op(function, op)
    x = jnp.asarray(x)
    if x.dtype == jnp.bool_ and code == Reduction.BXOR:
        logical = True
    if logical:
        return run((x != 0).astype(jnp.uint8), code).astype(x.dtype)
    if not _core.reduces(from_numpy(x.dtype), code):
        raise ValueError(f"{function}: {Reduction(code).name} is not defined for {x.dtype}")
    return run(x, code)


def allreduce(x: Any, op: Any, *, comm: Any = None, token: Any = NOTSET) -> Any:
    """The elements of ``x`` reduced over the ranks, on all of them.

    ``x``: an array or number, of the same shape and dtype on all ranks. ``op``: MPI.SUM, PROD, MIN, MAX, BAND, BOR,
    BXOR, LAND, LOR or LXOR. A sum has derivatives in forward and reverse mode: in reverse, the cotangent of the result
    is that of the input, as if the result belonged to this rank alone.

    >>> mpi4jax.allreduce(jnp.ones(2), op=MPI.SUM)
    Array([2., 2.], dtype=float32)
    """
    check_token(token)
    group = as_group("allreduce", comm)

    def run(x: Any, code: int) -> Any:
        return primitives.allreduce(_spec(Kind.ALL_REDUCE, group, (x.shape, x.dtype), op=code), x)

    return _reduced("allreduce", x, op, run)


def reduce(x: Any, op: Any, root: int, *, comm: Any = None, token: Any = NOTSET) -> Any:
    """As `allreduce`, on the rank ``root``; the other ranks get their ``x`` back. It has no derivative."""
    check_token(token)
    group = as_group("reduce", comm)
    root = as_rank("reduce", "root", root, group)

    def run(x: Any, code: int) -> Any:
        spec = _spec(Kind.REDUCE, group, (x.shape, x.dtype), op=code, root=root)
        (reduced,) = primitives.plain(spec, x)
        return reduced

    reduced = _reduced("reduce", x, op, run)
    return reduced if group.rank == root else jnp.asarray(x)


def scan(x: Any, op: Any, *, comm: Any = None, token: Any = NOTSET) -> Any:
    """The elements of ``x`` reduced over the ranks up to this one.

    ``x``, ``op``: as in `allreduce`. It takes log2(ranks) messages, and has no derivative.
    """
    check_token(token)
    group = as_group("scan", comm)
    if as_op("scan", op)[0] not in _TWO:
        raise ValueError(f"scan: {op} is not one of {', '.join(one.name for one in _TWO)}")
    return _reduced("scan", x, op, lambda x, code: _scanned(group, x, code))


def _scanned(group: Group, x: Any, code: int) -> Any:
    """Round k adds the sum of 2^k ranks that end 2^k ranks before this one."""
    step, of_lower = 1, _TWO[Reduction(code)]
    while step < group.size:
        dest = group.rank + step if group.rank + step < group.size else PROC_NULL
        source = group.rank - step if group.rank >= step else PROC_NULL
        tag = _SCAN_TAG - step
        ends = {"root": dest, "source": source, "tag": tag, "recv_tag": tag}
        (before,) = primitives.plain(_spec(Kind.EXCHANGE, group, (x.shape, x.dtype), **ends), x)
        x = x if source == PROC_NULL else of_lower(before, x)
        step *= 2
    return x


_TWO: dict[Reduction, Callable[[Any, Any], Any]] = {
    Reduction.SUM: jnp.add,
    Reduction.PROD: jnp.multiply,
    Reduction.MIN: jnp.minimum,
    Reduction.MAX: jnp.maximum,
    Reduction.BAND: jnp.bitwise_and,
    Reduction.BOR: jnp.bitwise_or,
    Reduction.BXOR: jnp.bitwise_xor,
}


def allgather(x: Any, *, comm: Any = None, token: Any = NOTSET) -> Any:
    """The arrays of all ranks, stacked in order of rank: shape (ranks, *x.shape).

    ``x``: an array or number, of the same shape and dtype on all ranks.
    """
    check_token(token)
    group, x = as_group("allgather", comm), jnp.asarray(x)
    (gathered,) = primitives.plain(_spec(Kind.ALL_GATHER, group, ((group.size, *x.shape), x.dtype)), x)
    return gathered


def gather(x: Any, root: int, *, comm: Any = None, token: Any = NOTSET) -> Any:
    """As `allgather`, on the rank ``root``; the other ranks get their ``x`` back."""
    check_token(token)
    group, x = as_group("gather", comm), jnp.asarray(x)
    root = as_rank("gather", "root", root, group)
    results = [((group.size, *x.shape), x.dtype)] if group.rank == root else []
    return [*primitives.plain(_spec(Kind.GATHER, group, *results, root=root), x), x][0]


def scatter(x: Any, root: int, *, comm: Any = None, token: Any = NOTSET) -> Any:
    """One part of the root's array for each rank.

    ``x``: on the rank ``root`` of shape (ranks, *shape); elsewhere any array of the shape and dtype of a part. Returns
    the part, of that shape.
    """
    check_token(token)
    group, x = as_group("scatter", comm), jnp.asarray(x)
    root = as_rank("scatter", "root", root, group)
    if group.rank == root:
        _of_parts("scatter", x, group)
    shape, arrays = (x.shape[1:], [x]) if group.rank == root else (x.shape, [])
    (part,) = primitives.plain(_spec(Kind.SCATTER, group, (shape, x.dtype), root=root), *arrays)
    return part


def alltoall(x: Any, *, comm: Any = None, token: Any = NOTSET) -> Any:
    """Sends x[r] to each rank r, and returns what they have sent, in order of rank.

    ``x``: of shape (ranks, ...), the same on all ranks.
    """
    check_token(token)
    group, x = as_group("alltoall", comm), jnp.asarray(x)
    _of_parts("alltoall", x, group)
    (exchanged,) = primitives.plain(_spec(Kind.ALL_TO_ALL, group, (x.shape, x.dtype)), x)
    return exchanged


def bcast(x: Any, root: int, *, comm: Any = None, token: Any = NOTSET) -> Any:
    """The array of the rank ``root``, on all ranks. ``x``: of the same shape and dtype on all ranks."""
    check_token(token)
    group, x = as_group("bcast", comm), jnp.asarray(x)
    root = as_rank("bcast", "root", root, group)
    spec = _spec(Kind.BROADCAST, group, (x.shape, x.dtype), root=root)
    (found,) = primitives.plain(spec, x)
    return found


def barrier(*, comm: Any = None, token: Any = NOTSET) -> None:
    """No later operation of this rank runs before all ranks have come here.

    Python goes on at once: `jax.effects_barrier()` waits.
    """
    check_token(token)
    primitives.plain(_spec(Kind.BARRIER, as_group("barrier", comm)))


def send(x: Any, dest: int, *, tag: int = 0, comm: Any = None, token: Any = NOTSET) -> None:
    """Sends an array or number to the rank ``dest``, which calls `recv`.

    More than 4 KiB wait for the receive. ``dest`` may be MPI.PROC_NULL: nothing is sent.
    """
    check_token(token)
    group, x = as_group("send", comm), jnp.asarray(x)
    ends = {"root": as_rank("send", "dest", dest, group, nobody=True), "tag": as_tag("send", "tag", tag)}
    primitives.plain(_spec(Kind.EXCHANGE, group, **ends), x)


def recv(
    x: Any,
    source: int = ANY_SOURCE,
    *,
    tag: int = ANY_TAG,
    comm: Any = None,
    status: Any = None,
    token: Any = NOTSET,
) -> Any:
    """What the rank ``source`` sends.

    ``x``: an array or number of the shape and dtype of what comes. ``source``: a rank; with one other rank it may be
    left out; of MPI.PROC_NULL ``x`` comes back. ``tag``: of the message that is taken; those of a rank with the same
    tag are taken in its order. ``status``: an MPI.Status, filled when the message has come.
    """
    check_token(token)
    group, x = as_group("recv", comm), jnp.asarray(x)
    ends = _receives("recv", group, source, tag, status, "tag")
    (found,) = primitives.plain(_spec(Kind.EXCHANGE, group, (x.shape, x.dtype), **ends))
    return x if ends["source"] == PROC_NULL else found


def _receives(function: str, group: Group, source: Any, tag: Any, status: Any, name: str) -> dict[str, Any]:
    return {
        "source": as_source(function, source, group),
        "recv_tag": as_tag(function, name, tag, any_tag=True),
        "status": as_status(function, status),
    }


def sendrecv(
    sendbuf: Any,
    recvbuf: Any,
    source: int,
    dest: int,
    *,
    sendtag: int = 0,
    recvtag: int = ANY_TAG,
    comm: Any = None,
    status: Any = None,
    token: Any = NOTSET,
) -> Any:
    """Sends ``sendbuf`` to the rank ``dest``, and returns what the rank ``source`` sends.

    ``recvbuf``: an array or number of the shape and dtype of what comes. ``sendtag``, ``recvtag``, ``status``: as in
    `send` and `recv`. It has a derivative in reverse mode: the cotangent goes from ``dest`` to ``source``. Of
    MPI.PROC_NULL as ``source``, ``recvbuf`` comes back.
    """
    check_token(token)
    group = as_group("sendrecv", comm)
    sendbuf, recvbuf = jnp.asarray(sendbuf), jnp.asarray(recvbuf)
    ends = _receives("sendrecv", group, source, recvtag, status, "recvtag")
    ends["root"] = as_rank("sendrecv", "dest", dest, group, nobody=True)
    ends["tag"] = as_tag("sendrecv", "sendtag", sendtag)
    found = primitives.sendrecv(_spec(Kind.EXCHANGE, group, (recvbuf.shape, recvbuf.dtype), **ends), sendbuf)
    if ends["source"] != PROC_NULL:
        return found
    # Zeros have come. They are added, so that the cotangent of what is sent comes back from `dest`.
    return jax.lax.stop_gradient(recvbuf) + found if _is_smooth(found) else recvbuf


def _is_smooth(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))
