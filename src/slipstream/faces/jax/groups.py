"""Groups as operations name them: a compiled function has an id, which the native handler looks up at each call."""

from __future__ import annotations

from slipstream import _core
from slipstream.comm.collectives.native_calls import handle_of
from slipstream.comm.membership.group import Group, check_group, world
from slipstream.faces.jax.leaving import complete_before_leaving

__all__ = ["named"]

_held: dict[int, int] = {}  # C's handles of groups that operations name, by id


def named(group: Group | None) -> tuple[Group, int]:
    """The group, and what operations call it: a compiled function may outlive the job, whose world is 0."""
    check_group("group", group)
    complete_before_leaving((group or world()).job)
    if group is None or group is group.job.world:
        return group or world(), 0
    if group.id not in _held:
        _held[group.id] = handle_of(group)
        group_id = group.id
        group.job.when_left(lambda: _core.c_release(_held.pop(group_id, 0)))
    return group, group.id
