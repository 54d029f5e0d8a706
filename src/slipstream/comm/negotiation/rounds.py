"""Rounds of a negotiation: all ranks tell each other what is new to them, and start what all of them have called."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from slipstream.base import recording
from slipstream.base.errors import SlipstreamError, Timeout
from slipstream.base.log import Log
from slipstream.base.spans import format_spans
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import JOIN, Agreement, Decision, Key, Request
from slipstream.comm.negotiation.buffers import Buffer, SharedSum
from slipstream.comm.negotiation.messages import exchange, messages_of, only_joins
from slipstream.comm.negotiation.negotiated import Negotiated, Pending, abort_for
from slipstream.comm.negotiation.order import Cycles, LockedOrder, share
from slipstream.comm.negotiation.overdue import WARN, Overdue

__all__ = ["Rounds", "TakePart", "listed"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.02  # seconds between rounds in which nobody has announced anything
_MOST_SHOWN = 5  # operations in a text
_LOOK = 0.5  # seconds between two looks at the time
# Seconds. What a rank has announced so short a time before a round that does not end, the engine warns of as soon.
_ENGINE_SAYS = 2.0

_log = Log("slipstream.negotiation")

TakePart = Callable[[Request, Group], Pending]


class Rounds:
    """What a rank has announced, and what its group knows. Of the negotiator's thread alone.

    ``begin`` starts a call that has been decided, or fails it with a mismatch. ``count``: how many rounds there have
    been; ``helped``: how many operations of others this rank took part in, as it had joined; ``pause``: seconds that a
    rank should wait before the next one; ``take_part``: starts what this rank does not call, once it has joined.
    ``clock``: in seconds.
    """

    def __init__(
        self,
        group: Group,
        begin: Callable[[Negotiated, str, bool], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.count = 0
        self.helped = 0
        self.pause = 0.0
        self.take_part: TakePart | None = None
        self.open: dict[Key, Negotiated] = {}  # announced and not decided, by what ranks match them by
        self._group = group
        self._messages = messages_of(group)
        self._begin = begin
        self._limit = group.job.settings.timeout
        self._agreement = Agreement(group.native.ranks, group.job.settings.fusion_threshold)
        self._cycles = Cycles()
        self._clock = clock
        self._overdue = Overdue()
        self._look_at = 0.0

    def run(self, new: Sequence[Negotiated]) -> LockedOrder | None:
        """A round that announces ``new``. Returns the order, if the ranks lock it now."""
        order = self._run(new)
        # Each rank waits for something that another one has not called: they look again, less and less often.
        quiet = self._agreement.quiet
        self.pause = min(max(2 * self.pause, _FIRST_PAUSE), _LONGEST_PAUSE) if quiet else 0.0
        return order

    def unlock(self, order: LockedOrder, new: Sequence[Negotiated]) -> tuple[LockedOrder | None, int]:
        """The round in which all ranks leave a locked order: they tell how far they have come in it, and why it ends.

        Returns what `run` does, and the number of batches that some rank has launched.
        """
        self.pause = 0.0
        self._cycles.unlocked(order.ended)
        again = self._run(new, order.launched, order.deviates)
        for rank, reason in self._agreement.reasons:
            _log.info("the order of operations is not locked any more: rank %d %s", rank, reason)
            recording.mark("negotiation", "unlocked", rank=rank, reason=reason)
        return again, self._agreement.launched

    def lacking(self, key: Key) -> list[int]:
        """The ranks that have not called what this one has, as far as it knows; of all threads."""
        return self._agreement.lacking(key)

    def _run(self, new: Sequence[Negotiated], launched: int = 0, reason: str = "") -> LockedOrder | None:
        keys = self._agreement.keys(self._group.rank, [one.request for one in new])
        for key, one in zip(keys, new, strict=True):
            self.open[key] = one
            one.announced = True
        entries = [entry for one in new for entry in ((None, one.request) if one.pause else (one.request,))]
        mine = self._agreement.encode(entries, launched, reason)
        recording.mark("negotiation", "CYCLE_START", number=self.count)
        began = self._clock()
        messages = exchange(
            self._messages,
            mine,
            self._titles,
            endless=only_joins(self.open),
            meanwhile=lambda: self._look_at_the_time(began - _ENGINE_SAYS),
        )
        self.count += 1
        decisions = self._agreement.decide(messages)
        self._overdue.end(decision.key for decision in decisions)
        self.helped += sum(decision.key not in self.open for decision in decisions)
        self._start_all(decisions)
        for decision in decisions:
            self._cycles.note(decision)
        order = None if self._agreement.anyone_joined else self._cycles.locked(self._agreement.room)
        if order is not None:
            _log.info("the order of %d operations is locked, in %d batches", len(order), len(order.batches))
            recording.mark("negotiation", "locked", operations=len(order), batches=len(order.batches))
            self._forget(order)
        else:
            self._look_at_the_time()
        return order

    def _forget(self, order: LockedOrder) -> None:
        """What has been announced and not decided: each rank takes it to the locked order, or announces it again."""
        self._agreement.forget()
        # What the order has may be done in it, and what has no name may have another number after it.
        self._overdue.end(key for batch in order.batches for key in batch.keys)
        self._overdue.end(key for key in self._overdue.older(float("inf")) if not key[0])
        for one in self.open.values():
            one.announced = False
        self.open.clear()

    def _start_all(self, decisions: Sequence[Decision]) -> None:
        good = [one for one in decisions if not one.mismatch]
        cut = share([one.request for one in good], self._agreement.room)
        together = {good[part.start].key: good[part.start : part.stop] for part in cut}
        inside = {one.key for part in together.values() for one in part[1:]}
        for decision in decisions:
            if decision.key in inside:
                continue
            part = together.get(decision.key, [])
            if len(part) > 1:
                self._start_together([one.request for one in part], [one.key for one in part])
                continue
            call = self.open.pop(decision.key, None)
            if call is not None:
                self._begin(call, decision.mismatch, decision.own)
            elif not decision.mismatch:
                self._start_for_others(decision.request)

    def _start_together(self, requests: Sequence[Request], keys: Sequence[Key]) -> None:
        calls = [self.open.pop(key, None) for key in keys]
        try:
            buffer = Buffer([one.sum for one in requests if one.sum is not None], flagged=False)
            buffer.pack(self._group, calls)
            shown = ", ".join(repr(one.name) if one.name else one.kind for one in requests[:_MOST_SHOWN])
            work = buffer.reduce(self._group, f"{shown} ({len(requests)} operations)")
        except BaseException as error:
            if not isinstance(error, SlipstreamError):
                abort_for(self._group, requests[0], error)
            for call in calls:
                if call is not None:
                    call.fail(error)
            return
        for number, call in enumerate(calls):
            if call is not None:
                call.starts()
                call.go_on(SharedSum(buffer, number, call, work))

    def _start_for_others(self, request: Request) -> None:
        """This rank has joined: it takes part without data."""
        assert self.take_part is not None
        try:
            self.take_part(request, self._group)
        except SlipstreamError:
            raise
        except BaseException as error:
            abort_for(self._group, request, error)
            raise

    def _look_at_the_time(self, before: float = float("inf")) -> None:
        """Warns of operations that some ranks do not call although they call others, and ends the session at last.

        ``before``: it is only about those that have waited since before that.
        """
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + min(_LOOK, self._limit / 4)
        self._see(now)
        mine = min((one.since for key, one in self.open.items() if key[0] != JOIN), default=now)
        if now - mine > self._limit and mine < before:
            waits = self._waits(self._overdue.older(now - min(WARN, self._limit / 2)), now)
            text = (
                f"Timed out after {now - mine:.0f} s (SLIPSTREAM_TIMEOUT, or `slipstream run --timeout`, sets the "
                f"limit): {waits}"
            )
            self._group.session.abort(text)
            raise Timeout(text)
        if due := self._overdue.due(now, before):
            _log.warning("%s", self._waits(due, now))

    def _see(self, now: float) -> None:
        """Takes note of what waits: for the ranks that have joined, other calls may go on for long."""
        waiting = {key for key in (*self.open, *self._agreement.missing()) if key[0] != JOIN}
        for key in waiting:
            self._overdue.see(key, self.open[key].since if key in self.open else now)
        self._overdue.keep(waiting)

    def _waits(self, keys: Sequence[Key], now: float) -> str:
        """Which of these operations wait for which ranks, and for how long."""
        titles = self._title_of()
        told = [f"{titles[key]}, for {now - self._overdue.since(key):.0f} s now" for key in keys]
        return f"not all ranks have called {listed(told)}"

    def _titles(self) -> str:
        return listed(list(self._title_of().values()))

    def _title_of(self) -> dict[Key, str]:
        """What texts call all that is open, with the ranks that have not called it as far as this one knows."""
        rank = self._group.native.ranks[self._group.rank]
        found = {}
        for key, ranks in self._agreement.missing().items():
            others = [one for one in ranks if one != rank or key not in self.open]
            found[key] = _of(self._agreement.request(key), others)
        return found | {key: one.request.title for key, one in self.open.items() if key not in found}


def listed(titles: Sequence[str]) -> str:
    """The first ones of these, for a text."""
    more = f" and {len(titles) - _MOST_SHOWN} more" if len(titles) > _MOST_SHOWN else ""
    return ", ".join(titles[:_MOST_SHOWN]) + more


def _of(request: Request, missing: Sequence[int]) -> str:
    ranks = f" (missing: rank{'s' if len(missing) > 1 else ''} {format_spans(missing)})" if missing else ""
    return f"{request.title}{ranks}"
