"""Makes the process groups that c10d asks for."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from slipstream.base.settings import Settings
from slipstream.comm.membership.group import Group
from slipstream.comm.membership.job import Job, enter
from slipstream.faces.torch_distributed import compiling, functional
from slipstream.faces.torch_distributed.group import SlipstreamGroup
from slipstream.faces.torch_distributed.meeting import start_limit
from slipstream.faces.torch_distributed.patches import devices_of_others
from slipstream.faces.torch_distributed.works import WORKS
from slipstream.faces.torch_steps import watch_optimizers

__all__ = ["is_default", "make_group"]

_c10d: Any = torch._C._distributed_c10d


def make_group(options: Any, _group_options: Any) -> SlipstreamGroup:
    """The group that ``options`` (c10d's DistributedBackendOptions) describes.

    The default group enters a job of its ranks. Later groups of the same ranks' are groups in that job; where the
    default group belongs to another backend, each of ours is a job of its own. All members of a group call this. The
    timeout that c10d passes if the program gives none counts as none: SLIPSTREAM_TIMEOUT limits the operations then.
    """
    functional.install()
    watch_optimizers()
    compiling.skip((SlipstreamGroup, *WORKS))
    ranks = list(options.global_ranks_in_group)
    root = _default_group() if ranks else None
    if root is None:
        job = _enter(options)
        members, owned = Group(job=job), job
        members.take_reducers()
    else:
        members, owned = Group([root.members.native.ranks[r] for r in ranks], root.members.job), None
    others = {
        device: _make_other(device, backend, options) for device, backend in devices_of_others().items()
    }
    limit = None if is_default(options.timeout) else options.timeout
    return SlipstreamGroup(members, store=options.store, timeout=limit, owned=owned, others=others)


def is_default(timeout: timedelta) -> bool:
    """Whether it is what c10d passes if the program gives none; in place of nccl that may be nccl's."""
    replaces_nccl = c10d.Backend.NCCL in Settings.from_environment().replace
    return timeout == c10d.default_pg_timeout or (
        replaces_nccl and timeout == getattr(c10d, "default_pg_nccl_timeout", None)
    )


def _default_group() -> SlipstreamGroup | None:
    group: Any = c10d.GroupMember.WORLD
    return group if isinstance(group, SlipstreamGroup) else None


def _enter(options: Any) -> Job:
    settings = Settings.from_environment()
    settings = dataclasses.replace(settings, start_timeout=start_limit(settings, options.timeout))
    return enter(rank=options.group_rank, size=options.group_size, store=options.store, settings=settings)


def _make_other(device: str, backend: str, options: Any) -> Any:
    """A group of another backend for one kind of device, beside ours."""
    store = _c10d.PrefixStore(f"{device}/", options.store)
    group = _c10d.ProcessGroup(store, options.group_rank, options.group_size)
    if backend == c10d.Backend.GLOO:
        native: Any = _c10d.ProcessGroupGloo(
            store, options.group_rank, options.group_size, timeout=options.timeout
        )
        kind = _c10d.ProcessGroup.BackendType.GLOO
    elif backend == c10d.Backend.NCCL:
        nccl = _c10d.ProcessGroupNCCL.Options()
        nccl._timeout = options.timeout
        nccl.global_ranks_in_group = options.global_ranks_in_group
        nccl.group_name = options.group_id
        native = _c10d.ProcessGroupNCCL(store, options.group_rank, options.group_size, nccl)
        kind = _c10d.ProcessGroup.BackendType.NCCL
    else:
        raise ValueError(f"slipstream cannot be combined with the backend {backend!r} (for {device})")
    group._set_default_backend(kind)
    group._register_backend(torch.device(device), kind, native)
    return group
