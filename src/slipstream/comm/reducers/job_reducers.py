"""The reducers of a job, on one of its ranks: asked for sessions, connected to, and given reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slipstream import _core
from slipstream.base.settings import Settings
from slipstream.comm.rendezvous.join import Membership
from slipstream.comm.rendezvous.secret import reducer_secret
from slipstream.plan.choose import Reducers, SmallCosts
from slipstream.plan.topology import numbered

if TYPE_CHECKING:
    from slipstream.comm.reducers.client import Keeper

__all__ = ["JobReducers"]

_LANES = 2  # to all reducers together, unless the settings say how many


class JobReducers:
    """What a rank knows of its job's reducers; there may be none.

    ``known``: name, addresses and incarnation of each, the same on all ranks. ``small_costs``: of small all-reduces;
    None as long as it was not measured. ``client`` splits the session's all-reduces, if there are reducers.
    """

    def __init__(self, settings: Settings, member: Membership) -> None:
        self._settings, self._member = settings, member
        self.known: tuple[dict[str, Any], ...] = ()
        self.client: _core.ReducerClient | None = None
        self.small_costs: SmallCosts | None = None
        self._serves_hosts = False
        self._group: Any = None  # whose reductions go through the reducers
        self._keeper: Keeper | None = None

    def register(self) -> list[dict[str, Any]]:
        """Rank 0 asks each reducer for a session, and returns what all ranks are to know. The others: nothing."""
        settings, member = self._settings, self._member
        if not settings.reducers or member.size == 1 or member.rank != 0:
            return []
        from slipstream.comm.reducers.client import Keeper, Request  # most jobs have no reducers

        request = Request(f"{member.job}/{member.epoch}", member.size, self._lanes(), self._shared_hosts())
        secret = reducer_secret(settings, member.secret)
        self._keeper = Keeper(settings.reducers, secret, request, encrypt=settings.encrypt)
        return self._keeper.register_all()

    def connect(
        self, session: _core.Session, group: _core.Group, links: _core.LinkOptions, hosts: Sequence[str]
    ) -> None:
        """Has the session split all-reduces between the workers and the `known` reducers. All ranks call it.

        ``group``: of all ranks, for this alone. ``links``: what the settings say of links; kept. ``hosts``: per rank:
        what can share memory has the same. Reducers are measured, and take part, only if there are several.
        """
        from slipstream.comm.measuring.runs import compiled
        from slipstream.comm.reducers.calibration import calibrate
        from slipstream.comm.reducers.carried_shards import native_shards
        from slipstream.plan.reducers import worker
        from slipstream.plan.registry import build
        from slipstream.plan.shards import shards_of

        settings, member = self._settings, self._member
        links.lanes = self._lanes()
        links.threads = 0  # those of the job's own links do not serve these
        small = build("all_reduce", "recursive_doubling", member.rank, member.size)
        star = worker(member.rank, member.size)
        numbers = numbered(hosts)
        client = self.client = _core.use_reducers(
            session,
            group,
            f"{member.job}/{member.epoch}",
            reducer_secret(settings, member.secret),
            [(one["name"], one["addresses"], one["incarnation"]) for one in self.known],
            compiled(star),
            compiled(small),
            native_shards(shards_of(member.size, numbers), member.rank),
            settings.reducer_heartbeat,
            links,
        )
        self._serves_hosts = len(set(hosts)) > 1
        if self._serves_hosts:
            self.small_costs = calibrate(client, session, group, member.rank, numbers)
        if self._keeper is not None:
            self._keeper.watch(client)

    def _shared_hosts(self) -> tuple[int, ...]:
        """The number of each rank's host; nothing if no ranks share memory."""
        hosts = self._member.host_ids
        shared = self._settings.transport != "tcp" and len(set(hosts)) < len(hosts)
        return numbered(hosts) if shared else ()

    def _lanes(self) -> int:
        """Connections to each reducer: all together as many as to one other worker."""
        reducers = max(1, len(self._settings.reducers))  # only other ranks may name any
        lanes = self._settings.lanes
        return -(-(lanes if isinstance(lanes, int) else _LANES) // reducers)

    def serve(self, group: Any) -> None:
        """Has the reductions of ``group`` go through the reducers. ValueError if those of another group do."""
        if self._group is not None and self._group.id != group.id:
            raise ValueError("one group of a job may use its reducers, and another one does")
        self._group = group

    def serve_instead(self, group: Any) -> None:
        """Has the reductions of ``group`` go through the reducers, and no longer those of another one."""
        self._group = group

    def for_choices(self, group: object) -> Reducers | None:
        """What the choices of ``group`` depend on if reducers serve it; None if they do not."""
        serves = self.client is not None and self._serves_hosts and self._group is group
        return Reducers(self.small_costs) if serves else None

    def states(self) -> list[dict[str, Any]]:
        """What this rank knows of each reducer: its ``name``, whether it is ``used``, the bytes ``sent`` to it."""
        return [] if self.client is None else self.client.states()

    def links(self) -> list[dict[str, Any]]:
        """This rank's links to them, as the session tells of those to ranks; ``rank``: -1 for the first reducer."""
        found = {} if self.client is None else self.client.links()
        return [link | {"rank": -1 - number} for number, link in found.items()]

    def stop(self) -> None:
        """Registers no more with reducers that were lost."""
        if self._keeper is not None:
            self._keeper.stop()

    def forget_group(self) -> None:
        """The group knows the job: the session's files go with the last reference."""
        self._group = None
