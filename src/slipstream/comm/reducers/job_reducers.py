"""The reducers of a job, on one of its ranks: asked for sessions, connected to, and given reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipstream import _core
from slipstream.base.settings import Settings
from slipstream.comm.rendezvous.join import Membership
from slipstream.comm.rendezvous.secret import reducer_secret
from slipstream.plan.choose import Reducers, SmallCosts

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
        self._ranks_are_apart = False
        self._group: Any = None  # whose reductions go through the reducers
        self._keeper: Keeper | None = None

    def register(self) -> list[dict[str, Any]]:
        """Rank 0 asks each reducer for a session, and returns what all ranks are to know. The others: nothing."""
        settings, member = self._settings, self._member
        if not settings.reducers or member.size == 1 or member.rank != 0:
            return []
        from slipstream.comm.reducers.client import Keeper, Request  # most jobs have no reducers

        request = Request(f"{member.job}/{member.epoch}", member.size, self._lanes())
        secret = reducer_secret(settings, member.secret)
        self._keeper = Keeper(settings.reducers, secret, request, encrypt=settings.encrypt)
        return self._keeper.register_all()

    def connect(
        self, session: _core.Session, group: _core.Group, links: _core.LinkOptions, *, ranks_are_apart: bool
    ) -> None:
        """Has the session split all-reduces between the workers and the `known` reducers. All ranks call it.

        ``group``: of all ranks, for this alone. ``links``: what the settings say of links; kept. Reducers are measured,
        and take part, only if ``ranks_are_apart``: no two ranks share memory.
        """
        from slipstream.comm.reducers.calibration import calibrate
        from slipstream.plan.reducers import worker
        from slipstream.plan.registry import build

        settings, member = self._settings, self._member
        links.lanes = self._lanes()
        links.threads = 0  # those of the job's own links do not serve these
        small = build("all_reduce", "recursive_doubling", member.rank, member.size)
        star = worker(member.rank, member.size)
        client = self.client = _core.use_reducers(
            session,
            group,
            f"{member.job}/{member.epoch}",
            reducer_secret(settings, member.secret),
            [(one["name"], one["addresses"], one["incarnation"]) for one in self.known],
            _core.Plan.compile(star.rank, star.size, star.blocks, *star.encode()),
            _core.Plan.compile(small.rank, small.size, small.blocks, *small.encode()),
            settings.reducer_heartbeat,
            links,
        )
        self._ranks_are_apart = ranks_are_apart
        if ranks_are_apart:
            self.small_costs = calibrate(client, session, group, member.rank, member.size)
        if self._keeper is not None:
            self._keeper.watch(client)

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

    def for_choices(self, group: object) -> Reducers | None:
        """What the choices of ``group`` depend on if reducers serve it; None if they do not."""
        serves = self.client is not None and self._ranks_are_apart and self._group is group
        return Reducers(self.small_costs) if serves else None

    def states(self) -> list[dict[str, Any]]:
        """What this rank knows of each reducer: its ``name``, whether it is ``used``, the bytes ``sent`` to it."""
        return [] if self.client is None else self.client.states()

    def stop(self) -> None:
        """Registers no more with reducers that were lost."""
        if self._keeper is not None:
            self._keeper.stop()

    def forget_group(self) -> None:
        """The group knows the job: the session's files go with the last reference."""
        self._group = None
