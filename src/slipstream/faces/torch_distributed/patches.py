"""The functions of PyTorch that are wrapped, because they do not let another backend do its work.

``_new_process_group_helper`` does not tell a backend the whole string it was asked for. A backend in Python stands
for the whole group, so in ``"cpu:slipstream,cuda:nccl"`` ours must serve CUDA as well: for that it has to know who was
to. The wrapper also lets slipstream stand in for the backends named in SLIPSTREAM_REPLACE. ``monitored_barrier``
insists on the name gloo, ``split_group`` on an accelerator: groups of ours can do both. ``init_process_group`` does not
notice ranks that end before they come to it: those of `slipstream run` meet at its launcher first (meeting.py).
Everything is as it was for
groups of other backends. ``_extract_tensors`` pickles what a future is given to find its tensors, which takes longer
than a small all-reduce; for a list of tensors the answer is known.
"""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from slipstream import _core
from slipstream.faces.torch_distributed.bypassed import say_if_bypassed
from slipstream.faces.torch_distributed.meeting import meet_at_launcher

__all__ = ["devices_of_others", "install", "is_ours", "with_signature_of"]

_OURS = "slipstream"
_c10d: Any = distributed_c10d
_jit: Any = torch._jit_internal
_devices: ContextVar[dict[str, str]] = ContextVar("devices of the group being made", default={})  # noqa: B039


def devices_of_others() -> dict[str, str]:
    """Device type to backend, for those of the group being made that slipstream does not serve."""
    return {device: backend for device, backend in _devices.get().items() if backend != _OURS}


def install(replaced: frozenset[str]) -> None:
    """Wraps the functions; ``replaced`` are the backends that slipstream stands in for."""
    _c10d._new_process_group_helper = _noting(_c10d._new_process_group_helper, replaced)
    wrappers: dict[str, Callable[[Any], Any]] = {
        "init_process_group": partial(_meeting_first, replaced=replaced),
        "monitored_barrier": _monitored_barrier,
        "split_group": _split_group,
    }
    for name, wrap in wrappers.items():
        original = getattr(_c10d, name, None)
        wrapped = None if original is None else wrap(original)
        for module in (_c10d, dist, device_mesh):
            if original is not None and getattr(module, name, None) is original:
                setattr(module, name, wrapped)
    if hasattr(_jit, "_extract_tensors"):
        _jit._extract_tensors = _extracting(_jit._extract_tensors)


def with_signature_of(original: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """``wrapper`` under the name, documentation and signature of ``original``."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):  # pickle looks a function up by these
        setattr(wrapper, name, getattr(original, name))
    wrapper.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return wrapper


# ---- making groups


def _meeting_first(original: Callable[..., Any], replaced: frozenset[str]) -> Callable[..., Any]:
    """Has ranks that slipstream's launcher has started meet in its store before they do in PyTorch's.

    PyTorch's store does not know when a rank has ended: the others would wait for it for the whole time-out.
    """
    parameters = inspect.signature(original)
    met = False  # and PyTorch has failed since: the others may not come here again

    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        nonlocal met
        if not met and _meets(parameters, replaced, args, kwargs):
            met = True
        made = original(*args, **kwargs)
        met = False
        return made

    return with_signature_of(original, init_process_group)


def _noting(make: Callable[..., Any], replaced: frozenset[str]) -> Callable[..., Any]:
    parameters = inspect.signature(make)

    def make_noting(*args: Any, **kwargs: Any) -> Any:
        call = parameters.bind(*args, **kwargs)
        wanted = call.arguments["backend"]
        devices = {device: str(name) for device, name in _parse(wanted).items()}
        _check_spelling(devices.values())
        replacing = {device: name for device, name in devices.items() if name in replaced}
        if not replacing and _OURS not in devices.values() and _c10d.GroupMember.WORLD is None:
            say_if_bypassed(devices.values())
        devices.update(dict.fromkeys(replacing, _OURS))
        if replacing:
            call.arguments["backend"] = ",".join(f"{device}:{name}" for device, name in devices.items())
        token = _devices.set(devices)
        try:
            made = make(*call.args, **call.kwargs)
        finally:
            _devices.reset(token)
        if replacing:
            _masquerade(made[0], wanted, replacing.get("cpu", next(iter(replacing.values()))))
        return made

    return with_signature_of(make, make_noting)


def _meets(
    parameters: inspect.Signature, replaced: frozenset[str], args: Sequence[Any], kwargs: dict[str, Any]
) -> bool:
    """Meets, if a call of ``init_process_group`` with these arguments is to; PyTorch says what is wrong with them."""
    try:
        call = parameters.bind(*args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        names = {str(name) for name in _parse(given["backend"] or "undefined").values()}
    except (TypeError, ValueError):
        return False
    timeout = given["timeout"] or _c10d.default_pg_timeout
    ours = not names.isdisjoint({_OURS, *replaced}) and _c10d.GroupMember.WORLD is None
    alone = given["store"] is not None or given["init_method"] not in (None, "env://")
    if not ours or alone or not isinstance(timeout, timedelta) or not isinstance(given["world_size"], int):
        return False
    meet_at_launcher(given["world_size"], timeout)
    return True


def _parse(backend: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch parses the text again, and warns there
        devices: dict[str, Any] = _c10d.BackendConfig(_c10d.Backend(backend)).get_device_backend_map()
    return devices


def _check_spelling(names: Iterable[str]) -> None:
    """ValueError for a name that PyTorch does not know and that resembles ours."""
    for name in names:
        if name not in dist.Backend.backend_list and difflib.get_close_matches(name, [_OURS], cutoff=0.8):
            raise ValueError(f"torch.distributed has no backend {name!r}; did you mean {_OURS!r}?")


def _masquerade(group: Any, wanted: Any, label: str) -> None:
    """Lets c10d believe that ``group`` is of the backend that was asked for, and the profiler show its name."""
    registered = _c10d._world.pg_map.get(group)
    if registered is not None:
        group.label = label
        _c10d._world.pg_map[group] = (wanted, registered[1])
        _c10d._world.pg_backend_config[group] = str(_c10d.BackendConfig(_c10d.Backend(wanted)))


# ---- what needs a name or an accelerator


def is_ours(group: Any) -> bool:
    """Whether slipstream serves ``group``; None is the default one."""
    return getattr(group or _c10d.GroupMember.WORLD, "serves", None) == _OURS


def _monitored_barrier(original: Callable[..., Any]) -> Callable[..., Any]:
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        if not is_ours(group):
            return original(group, timeout, wait_all_ranks)
        if isinstance(timeout, int | float):
            timeout = timedelta(seconds=timeout)
        return (group or _c10d.GroupMember.WORLD).monitored_barrier(timeout, wait_all_ranks)

    return with_signature_of(original, monitored_barrier)


def _split_group(original: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(original)

    def split_group(*args: Any, **kwargs: Any) -> Any:
        call = parameters.bind(*args, **kwargs)
        call.apply_defaults()
        parent, splits = call.arguments.get("parent_pg"), call.arguments.get("split_ranks")
        if not is_ours(parent):
            return original(*args, **kwargs)
        if not splits:
            raise ValueError("split_ranks cannot be None or empty")
        parent = parent or _c10d.GroupMember.WORLD
        for split in splits:
            if len(set(split)) != len(split) or not split:
                raise ValueError(f"a split must name each of its ranks once, and at least one: {split}")
        mine = next((sorted(split) for split in splits if parent.rank() in split), None)
        if mine is None:
            return None
        return _c10d.new_group(
            [_c10d.get_global_rank(parent, rank) for rank in mine],
            timeout=call.arguments.get("timeout"),
            use_local_synchronization=True,
            group_desc=call.arguments.get("group_desc"),
        )

    return with_signature_of(original, split_group)


# ---- futures


def _extracting(original: Callable[..., Any]) -> Callable[..., Any]:
    # No Python code, where a signal's handler could run: PyTorch makes a RuntimeError of what it raises.
    return with_signature_of(original, partial(_core.list_of, torch.Tensor, original))
