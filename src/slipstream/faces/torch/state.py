"""Equal beginnings: parameters and optimizer state as one rank has them, on every rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from slipstream.comm.collectives.interruption import Together, whole
from slipstream.comm.membership.group import world
from slipstream.faces.horovod.handles import Grouped, start
from slipstream.faces.horovod.objects import broadcast_object
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.torch.data_movement import number_of_root, start_broadcast
from slipstream.faces.torch.in_flight import Tensors
from slipstream.faces.torch.requests import parameters_request
from slipstream.faces.torch_tensors import describe
from slipstream.gradients.agreement import check_agreement

__all__ = ["broadcast_optimizer_state", "broadcast_parameters"]


@whole(lambda *_, **__: world())
def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrites parameters with those of ``root_rank``.

    ``params``: a state dict, ``model.named_parameters()`` or ``model.parameters()``; entries that are no
    tensors are left alone. Raises ValueError for anything else, Mismatch naming a parameter whose shape, dtype or
    place in the order differs between ranks.

    >>> model = torch.nn.Linear(2, 1)
    >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    if isinstance(params, Mapping):
        entries: list[tuple[str, Any]] = [(str(name), params[name]) for name in sorted(params)]
    elif isinstance(params, Iterable) and not isinstance(params, str | torch.Tensor):
        entries = [
            (str(entry[0]), entry[1]) if isinstance(entry, tuple) else (f"parameter {number}", entry)
            for number, entry in enumerate(params)
        ]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    tensors = [(name, entry) for name, entry in entries if isinstance(entry, torch.Tensor)]
    _broadcast_all(tensors, root_rank, process_set)


def _broadcast_all(
    tensors: Sequence[tuple[str, torch.Tensor]], root_rank: int, process_set: ProcessSet
) -> None:
    number_of_root(root_rank, process_set)

    def begin(used: ProcessSet) -> Grouped:
        with Together(used.group, "broadcast_parameters"):
            check_agreement("broadcast", [describe(name, tensor) for name, tensor in tensors], used.group)
            return Grouped([start_broadcast(tensor, True, root_rank, name, used) for name, tensor in tensors])

    memory = Tensors([tensor for _, tensor in tensors], True)
    start(None, process_set, lambda _: parameters_request(root_rank), begin, sync=True, memory=memory).wait()


@dataclass(frozen=True)
class _Hole:
    """Stands in a pickled state for a tensor, which follows on its own."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str


def _take_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """``value`` with its tensors replaced by holes and appended to ``tensors``."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        tensors.append(value.detach())
        return _Hole(tuple(value.shape), value.dtype, value.device.type)
    if type(value) is dict:
        return {key: _take_tensors(inner, tensors) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_take_tensors(inner, tensors) for inner in value)
    return value


def _fill_holes(value: Any, tensors: list[torch.Tensor]) -> Any:
    """``value`` with its holes replaced by new tensors, which are also appended to ``tensors``."""
    if isinstance(value, _Hole):
        tensors.append(torch.empty(value.shape, dtype=value.dtype, device=value.device))
        return tensors[-1]
    if type(value) is dict:
        return {key: _fill_holes(inner, tensors) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_fill_holes(inner, tensors) for inner in value)
    return value


@whole(lambda *_, **__: world())
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives an optimizer the state of the one on ``root_rank``: moments, step counts, learning rates, all
    options.

    The state may be empty here or there, and nested; the parameter groups must be the same everywhere. If it is empty
    on the root, parameters without a gradient get one of zeros, as with Horovod; but not those of the modules of
    ``model`` that make sparse gradients. Raises ValueError when the groups differ.

    >>> optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1 + hvd.rank())
    >>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    >>> optimizer.param_groups[0]["lr"]
    0.1
    """
    group = process_set.group
    is_root = group.ranks[group.rank] == root_rank
    tensors: list[torch.Tensor] = []
    holey = _take_tensors(optimizer.state_dict(), tensors) if is_root else None
    state = None
    with Together(group, "broadcast_optimizer_state"):
        holey = broadcast_object(holey, root_rank, process_set=process_set)
        if not is_root:
            state = _fill_holes(holey, tensors)
        named = [(f"state {i}", tensor) for i, tensor in enumerate(tensors)]
        _broadcast_all(named, root_rank, process_set)
    if state is not None:
        optimizer.load_state_dict(state)
    if isinstance(holey, dict) and not holey.get("state"):
        _give_gradients(optimizer, model)


def _give_gradients(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    if isinstance(optimizer, torch.optim.SparseAdam):
        return
    modules = [] if model is None else [one for one in model.modules() if getattr(one, "sparse", False)]
    left = {id(param) for module in modules for param in module.parameters()}
    for param in (param for group in optimizer.param_groups for param in group["params"]):
        if param.requires_grad and param.grad is None and id(param) not in left:
            param.grad = torch.zeros_like(param)
