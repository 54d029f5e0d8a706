"""The operations: on trees of arrays, in and outside of `jit`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from slipstream.base.dtypes import Op, as_op, as_wire
from slipstream.comm.membership.group import Group
from slipstream.faces.jax.calls import Kind, Spec
from slipstream.faces.jax.gradients import differentiable
from slipstream.faces.jax.groups import named
from slipstream.faces.jax.order import ordered

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "recv",
    "reducescatter",
    "send",
    "sendrecv",
]


def _run(spec: Spec, tree: Any, after: Any) -> Any:
    """The operation on each array of the tree. Those without a derivative (integers) go by themselves, first."""
    leaves, form = jax.tree.flatten(tree)
    leaves = [jnp.asarray(x) for x in leaves]
    for x in leaves:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            raise TypeError(
                f"{spec.kind.name.lower().replace('_', '')} takes arrays of numbers, not {x.dtype}: give it "
                "jax.random.key_data(key), and make the result a key by jax.random.wrap_key_data"
            )
    if spec.kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL):
        for x in leaves:
            _check_rows(spec, x)
    for smooth in (False, True):
        chosen = [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.inexact) is smooth]
        if chosen:
            results = ordered(spec, differentiable if smooth else None, [leaves[i] for i in chosen], after)
            for i, result in zip(chosen, results, strict=True):
                leaves[i] = result
    return jax.tree.unflatten(form, leaves)


def _check_rows(spec: Spec, x: Any) -> None:
    name = spec.kind.name.lower().replace("_", "")
    if x.ndim == 0:
        raise ValueError(f"{name} needs arrays of at least one dimension")
    if spec.kind is not Kind.ALL_GATHER and x.shape[0] % spec.size:
        raise ValueError(f"{name}: {x.shape[0]} rows do not divide equally among {spec.size} ranks")


def allreduce(
    tree: Any,
    op: Op | str = Op.AVG,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    wire: str | None = None,
    group: Group | None = None,
    after: Any = (),
) -> Any:
    """Reduces every array of ``tree`` over the ranks, element by element; all get the result.

    ``tree``: a tree of arrays, of the same shapes and dtypes on all ranks. ``op``: "sum", "avg", "min", "max", "prod",
    "band", "bor" or "bxor"; sums and averages have a derivative in reverse. ``prescale_factor``, ``postscale_factor``:
    of every rank's arrays, and of the result. ``wire``: what float32 travels as between hosts ("bf16", "f16", "f8",
    "int8"). ``group``: the ranks that take part, default all. ``after``: a tree of arrays that must be there before.
    Returns a tree like ``tree``. Raises ValueError or TypeError for arguments that do not fit; a SlipstreamError, or
    JaxRuntimeError or ValueError with its text inside `jit`, when the operation fails.
    """
    members, group_id = named(group)
    spec = Spec(Kind.ALL_REDUCE, members.size, group_id, op=int(as_op(op)), shapes=True)
    return _by_wire(_scaled(spec, float(prescale_factor), float(postscale_factor)), wire, tree, after)


def _scaled(spec: Spec, prescale: float, postscale: float) -> Spec:
    return replace(spec, prescale=prescale, postscale=postscale)


def _by_wire(spec: Spec, wire: str | None, tree: Any, after: Any) -> Any:
    code = int(as_wire(wire))
    if not code:
        return _run(spec, tree, after)
    leaves, form = jax.tree.flatten(tree)
    shortened = [jnp.asarray(x).dtype == jnp.float32 for x in leaves]
    for short in (False, True):
        chosen = [i for i, one in enumerate(shortened) if one is short]
        if chosen:
            done = _run(replace(spec, wire=code if short else 0), [leaves[i] for i in chosen], after)
            for i, result in zip(chosen, done, strict=True):
                leaves[i] = result
    return jax.tree.unflatten(form, leaves)


def reducescatter(
    tree: Any,
    op: Op | str = Op.AVG,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    group: Group | None = None,
    after: Any = (),
) -> Any:
    """Reduces every array over the ranks, and gives each rank its part of the rows.

    ``tree``: arrays whose dim 0 the number of ranks divides. The rest is as in `allreduce`. Returns a tree of arrays
    with that part of dim 0. Raises what `allreduce` raises.
    """
    members, group_id = named(group)
    spec = Spec(Kind.REDUCE_SCATTER, members.size, group_id, op=int(as_op(op)), shapes=True)
    return _run(_scaled(spec, float(prescale_factor), float(postscale_factor)), tree, after)


def allgather(tree: Any, *, group: Group | None = None, after: Any = ()) -> Any:
    """Joins every rank's arrays along dim 0, in order of rank.

    ``tree``: arrays of the same shapes on all ranks, of at least one dimension. ``group``, ``after``: as in
    `allreduce`. Returns a tree of arrays with as many times the rows. Raises what `allreduce` raises.
    """
    members, group_id = named(group)
    return _run(Spec(Kind.ALL_GATHER, members.size, group_id, shapes=True), tree, after)


def alltoall(tree: Any, *, group: Group | None = None, after: Any = ()) -> Any:
    """Sends an equal part of the rows of every array to each rank, and gets theirs, in order of rank.

    ``tree``: arrays whose dim 0 the number of ranks divides. ``group``, ``after``: as in `allreduce`. Returns a tree
    like ``tree``. Raises what `allreduce` raises.
    """
    members, group_id = named(group)
    return _run(Spec(Kind.ALL_TO_ALL, members.size, group_id, shapes=True), tree, after)


def broadcast(tree: Any, root_rank: int = 0, *, group: Group | None = None, after: Any = ()) -> Any:
    """Gives every rank the arrays of ``root_rank``.

    ``tree``: arrays of the same shapes and dtypes on all ranks. ``root_rank``: of the group. ``group``, ``after``: as
    in `allreduce`. Returns the root's tree. Raises what `allreduce` raises.
    """
    members, group_id = named(group)
    root = _rank_of(members, "root_rank", root_rank)
    mine = int(root == members.rank)  # the derivative asks
    return _run(
        Spec(Kind.BROADCAST, members.size, group_id, root=root, source=mine, shapes=True), tree, after
    )


def _rank_of(group: Group, name: str, value: int, *, other: bool = False) -> int:
    if not 0 <= value < group.size or (other and value == group.rank):
        what = "another rank" if other else "a rank"
        raise ValueError(f"{name} {value} is not {what} of a group of {group.size}")
    return int(value)


def sendrecv(
    tree: Any, dest: int, source: int, *, tag: int = 0, group: Group | None = None, after: Any = ()
) -> Any:
    """Sends every array to the rank ``dest``, and receives as many, of the same shapes, from the rank ``source``.

    ``tree``: arrays. ``dest``, ``source``: ranks of the group, not this one. ``tag``: tells messages between two ranks
    apart. ``group``, ``after``: as in `allreduce`. Returns what came, a tree like ``tree``. Raises what `allreduce`
    raises.
    """
    members, group_id = named(group)
    ends = _rank_of(members, "dest", dest, other=True), _rank_of(members, "source", source, other=True)
    spec = Spec(Kind.SEND_RECV, members.size, group_id, root=ends[0], source=ends[1], tag=int(tag))
    return _run(spec, tree, after)


def send(x: Any, dest: int, *, tag: int = 0, group: Group | None = None, after: Any = ()) -> None:
    """Sends an array to the rank ``dest``, which calls `recv`. Has no derivative: `sendrecv` has.

    ``x``: the array. ``dest``: a rank of the group, not this one. ``tag``, ``group``, ``after``: as in `sendrecv`. Two
    ranks that both send first may wait for each other: take `sendrecv`. Raises what `allreduce` raises.
    """
    members, group_id = named(group)
    root = _rank_of(members, "dest", dest, other=True)
    ordered(Spec(Kind.SEND, members.size, group_id, root=root, tag=int(tag)), None, [jnp.asarray(x)], after)


def recv(like: Any, source: int, *, tag: int = 0, group: Group | None = None, after: Any = ()) -> Any:
    """Receives an array from the rank ``source``, which calls `send`.

    ``like``: an array, or a jax.ShapeDtypeStruct, with the shape and dtype of what comes. ``source``: a rank of the
    group, not this one. ``tag``, ``group``, ``after``: as in `sendrecv`. Returns the array. Raises what `allreduce`
    raises.
    """
    members, group_id = named(group)
    root = _rank_of(members, "source", source, other=True)
    result = (tuple(like.shape), jnp.dtype(like.dtype).name)
    spec = Spec(Kind.RECV, members.size, group_id, root=root, tag=int(tag), results=(result,))
    return ordered(spec, None, [], after)[0]


def barrier(*, group: Group | None = None, after: Any = ()) -> None:
    """Is over once every rank of the group has called it.

    ``group``, ``after``: as in `allreduce`. In a traced function, what follows it in the same function comes after.
    Raises what `allreduce` raises.
    """
    members, group_id = named(group)
    ordered(Spec(Kind.BARRIER, members.size, group_id), None, [], after)
