"""Training in parallel with optax: gradients are averaged over the ranks before the optimizer sees them."""

from __future__ import annotations

from typing import Any

import jax

from slipstream.base.dtypes import Op
from slipstream.comm.membership.group import Group
from slipstream.faces.jax.operations import allreduce, broadcast

__all__ = ["DistributedOptimizer", "broadcast_parameters"]


def DistributedOptimizer(
    optimizer: Any, *, op: Op | str = Op.AVG, wire: str | None = None, group: Group | None = None
) -> Any:
    """An optax optimizer whose updates are made from the gradients of all ranks.

    ``optimizer``: an optax.GradientTransformation. ``op``: "avg" or "sum". ``wire``, ``group``: as in `allreduce`.
    Returns an optax.GradientTransformationExtraArgs, whose ``update`` every rank calls, in or outside of `jit`. To
    accumulate gradients over k steps, wrap the result: ``optax.MultiSteps(DistributedOptimizer(...), k)``. Raises
    TypeError if ``optimizer`` is no optax optimizer; ``update`` raises what `allreduce` raises.
    """
    import optax

    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise TypeError(f"optimizer must be an optax.GradientTransformation, not {type(optimizer).__name__}")
    inner = optax.with_extra_args_support(optimizer)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        reduced = allreduce(updates, op, wire=wire, group=group)
        return inner.update(reduced, state, params, **extra)

    return optax.GradientTransformationExtraArgs(inner.init, update)


def broadcast_parameters(params: Any, root_rank: int = 0, *, group: Group | None = None) -> Any:
    """The parameters, or the state of an optimizer, of ``root_rank``, for all ranks.

    ``params``: a tree, of which what is no array or number is left as it is. ``root_rank``: of the group. ``group``:
    default all ranks. Returns a tree like it. Raises what `broadcast` raises.
    """
    leaves, form = jax.tree.flatten(params)
    arrays = [i for i, x in enumerate(leaves) if hasattr(x, "dtype") or isinstance(x, int | float | complex)]
    for i, x in zip(arrays, broadcast([leaves[i] for i in arrays], root_rank, group=group), strict=True):
        leaves[i] = x
    return jax.tree.unflatten(form, leaves)
