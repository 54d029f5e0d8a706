"""The parameters of an optimizer: their names, the order in which ranks match them, and their groups."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch

__all__ = ["as_indices", "check_groups", "check_names", "cut", "in_order", "names_of", "unfrozen"]


def in_order(
    param_groups: Sequence[Mapping[str, Any]], known: Mapping[int, str] | None
) -> tuple[list[torch.Tensor], list[str] | None]:
    """The parameters that have gradients, in the order in which ranks match them, and their names.

    ``known``: the names by the id of the parameter, what `check_names` returns. Ranks match parameters by name; those
    that were added without one come last. Without names they match them by their order.
    """
    params = [p for group in param_groups for p in group["params"] if p.requires_grad]
    if known is None:
        return params, None
    params.sort(key=lambda p: (id(p) not in known, known.get(id(p), "")))
    return params, [known.get(id(p), "") for p in params]


def unfrozen(param_groups: Sequence[Mapping[str, Any]], known: AbstractSet[int]) -> list[torch.Tensor]:
    """The parameters that require gradients and whose ids are not ``known``."""
    return [p for group in param_groups for p in group["params"] if p.requires_grad and id(p) not in known]


def names_of(
    param_groups: Sequence[Mapping[str, Any]], known: Mapping[int, str] | None
) -> dict[torch.Tensor, str]:
    """The name of each parameter: that which is ``known``, else one that says its group and its place there."""
    return {
        p: (known or {}).get(id(p)) or f"allreduce.noname.{i}.{j}"
        for i, group in enumerate(param_groups)
        for j, p in enumerate(group["params"])
    }


def cut(params: Sequence[torch.Tensor], count: int) -> list[Sequence[torch.Tensor]]:
    """The parameters in ``count`` groups of about as many, in their order; none if that is 0."""
    if count <= 0:
        return []
    bounds = [len(params) * number // count for number in range(count + 1)]
    return [params[low:high] for low, high in itertools.pairwise(bounds) if low < high]


def as_indices(params: Sequence[torch.Tensor], groups: Sequence[Sequence[torch.Tensor]]) -> list[list[int]]:
    """The groups as indices into ``params``."""
    number_of = {id(param): index for index, param in enumerate(params)}
    return [[number_of[id(p)] for p in group if id(p) in number_of] for group in groups]


def check_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[Any] | None
) -> dict[int, str] | None:
    """The parameters' names, by the id of the parameter."""
    if named_parameters is None:
        return None
    named = list(named_parameters)
    if any(not isinstance(entry, tuple) for entry in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}"
        )
    known = {id(param) for _, param in named}
    unnamed = sum(id(p) not in known for group in optimizer.param_groups for p in group["params"])
    if unnamed:
        raise ValueError(
            f"named_parameters was specified, but one or more model parameters were not named: {unnamed} of those that "
            "the optimizer has"
        )
    return {id(param): str(name) for name, param in named}


def check_groups(groups: Any, num_groups: int) -> tuple[list[list[torch.Tensor]] | None, int]:
    """The lists of parameters that travel together, or how many groups to cut; ValueError for what is neither."""
    if num_groups:
        warnings.warn("num_groups has been replaced by groups", DeprecationWarning, stacklevel=3)
    if groups is None:
        return None, num_groups
    if isinstance(groups, int) and groups >= 0:
        return None, groups
    if not isinstance(groups, list) or not all(
        isinstance(group, list | tuple) and all(isinstance(p, torch.Tensor) for p in group)
        for group in groups
    ):
        raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
    members = [id(p) for group in groups for p in group]
    if len(set(members)) < len(members):
        raise ValueError("A parameter can only appear once in groups.")
    return [list(group) for group in groups], 0
