"""The all-reduces of a group in one class of sizes: waiting for its turn, trying, then watching in silence.

Every rank makes the same calls in the same order, so the number of a call means the same on all of them. A rank posts
what it knows at a call, and takes the agreed numbers at a later one: so many calls later as operations have been under
way on any rank so far, and one more. So everybody decides the same at the same call, and all ranks have posted theirs
by then, unless a program runs further ahead than it ever did before. Its call, asynchronous or not, then waits for the
other ranks: for ever, if they make theirs only after something that comes later here. So the first calls are watched
alone, and what the ranks say of them is taken many calls later.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slipstream import _core
from slipstream.comm.tuning.agreement import Pending
from slipstream.comm.tuning.candidates import Candidate, Space, Traffic, Way, space_of
from slipstream.comm.tuning.decision import Found, chosen, next_to_try
from slipstream.comm.tuning.samples import RunAhead, Samples
from slipstream.comm.tuning.statistics import MOST_SAMPLES, next_look, seconds_of, typical, unsettled, usable
from slipstream.comm.tuning.watching import Watch, look
from slipstream.plan.choose import Choice

if TYPE_CHECKING:
    from slipstream.comm.tuning.group_tuning import GroupTuning

__all__ = ["SizeClass"]

_log = logging.getLogger("slipstream.tuning")

_FIRST_CALL = 64  # those before set up links, show what sizes there are and how far programs run ahead
_FIRST_LAG = 64  # calls, as long as no rank knows how far the others run ahead
_MOST_CALLS = 2 * MOST_SAMPLES  # of a candidate
_NONE = -1.0  # no sample


class SizeClass:
    """``traffic``: which all-reduces; ``choice``: that of the cost model."""

    def __init__(self, tuning: GroupTuning, traffic: Traffic, choice: Choice) -> None:
        self._tuning: GroupTuning = weakref.proxy(tuning)  # which holds this
        self.traffic, self._choice = traffic, choice
        self.calls = self.agreements_posted = 0
        self.settled = False
        self._lock = threading.RLock()  # a handler of a signal may call
        self._pending: Pending | None = None
        self._due = 0
        self._ahead = RunAhead()
        self._lag = _FIRST_LAG
        self._space: Space | None = None
        self._found = Found()
        self.watch: Watch | None = None
        self._owns_lanes = False
        self._lanes: int | None = None
        self.candidate = Candidate(Way(choice.algorithm, choice.chunk_bytes, choice.reducers))
        self._samples: Samples | None = None
        self._look_at = 0  # calls with the candidate before the ranks tell their times
        self._first = _FIRST_CALL
        self.compiled = tuning.compile(self.candidate, choice.reason)

    # ---- what calls do

    def begin(self) -> Any:
        """The plan of the next call, as the group compiles it."""
        with self._lock:
            self._ahead.look()
            if self._pending is not None and self.calls >= self._due:
                numbers = self._pending.wait()
                self._pending = None
                self._learn(numbers)
            if self._pending is None:
                self._post()
            self.calls += 1
            return self.compiled

    def ran(self, begun: float, work: _core.Work | None) -> None:
        """A call has begun at ``begun``, by time.monotonic(). ``work``: None if it has ended."""
        if work is not None:
            self._ahead.add(work)
        if self._samples is not None:
            self._samples.add(begun, work)

    def remember(self, candidate: Candidate, seconds: float) -> None:
        """An earlier job has chosen. Before the first call."""
        if candidate.lanes is not None:
            self._owns_lanes = self._tuning.job.claim_lanes(self)
        self._use(candidate, "as remembered")
        self._settle(seconds)

    # ---- what the ranks tell each other

    def _post(self) -> None:
        if self.watch is not None and self.settled:
            self._post_look(self.watch)
            return
        if self._space is None:
            if self.calls >= self._first and self._tuning.takes_turn(self):
                self._owns_lanes = self._tuning.job.claim_lanes(self)
                self._send([])
            return
        assert self._samples is not None
        if self._samples.count >= self._look_at + self._lag - 1:  # so they are done
            self._send(self._samples.times())

    def _post_look(self, watch: Watch) -> None:
        left = watch.period - self.calls % watch.period
        if left == MOST_SAMPLES:
            self._samples = Samples(MOST_SAMPLES)
        elif left == watch.period and self._samples is not None:
            times = usable(self._samples.times())
            self._send([-typical(times)] if times else [math.inf])
            self._samples = None

    def _send(self, times: list[float]) -> None:
        padded = [*times, *[_NONE] * (MOST_SAMPLES - len(times))]
        lanes = self._tuning.lanes() if self._owns_lanes and self._space is None and not self.settled else 0
        values = [*padded, float(self._ahead.most), 0.0 if self._owns_lanes else 1.0, float(lanes)]
        what = f"tuning of all_reduces {self.traffic}"
        self._pending = self._tuning.agreements.post(values, what)
        self.agreements_posted += 1
        self._due = self.calls + self._lag

    # ---- what they make of it

    def _learn(self, numbers: list[float]) -> None:
        times, (ahead, lanes_are_others, lanes) = numbers[:MOST_SAMPLES], numbers[MOST_SAMPLES:]
        self._lag = 1 + int(ahead)  # it only grows from here
        if self.settled:
            self._look(-times[0])
            return
        if self._space is None:
            self._begin_search(None if lanes_are_others else int(lanes))
            return
        assert self._samples is not None
        best = min(self._found.first.values(), default=None)
        known = usable(times)
        last = self._samples.count >= _MOST_CALLS + self._lag
        seconds = seconds_of(known, best, last=last)
        if seconds is None:
            scale = min([*known, *self._found.first.values()], default=None)
            self._look_at = next_look(self._look_at, scale, self._samples.unsettled)
            return
        self._found.add(self.candidate, seconds)
        self._tuning.write("measured", self.traffic, self.candidate, seconds)
        following = next_to_try(self._space, self._found)
        if following is None:
            self._choose(self._space)
        else:
            self._try(following)

    def _begin_search(self, lanes: int | None) -> None:
        """``lanes``: that a link has, if this class sees to them on all ranks."""
        if self._owns_lanes and lanes is None:
            self._tuning.job.leave_lanes(self)
        self._owns_lanes = lanes is not None
        tuning = self._tuning
        space = space_of(self._choice, self.traffic, tuning.topology, bits=tuning.job.bits, lanes=lanes)
        if lanes is not None and self._lanes is not None:  # of the search before
            space = replace(space, start=replace(space.start, lanes=self._lanes))
        self._space = space
        self.candidate = space.start
        self._sample(0)

    def _try(self, candidate: Candidate) -> None:
        best = min(self._found.first.values())
        changing = unsettled(best, lanes=candidate.lanes != self.candidate.lanes)
        self._use(candidate, "on trial")
        self._sample(changing, best)

    def _sample(self, unsettled: int, best: float | None = None) -> None:
        self._samples = Samples(MOST_SAMPLES, unsettled)
        self._look_at = next_look(0, best, unsettled)

    def _choose(self, space: Space) -> None:
        best = chosen(space, self._found)
        seconds, before = (self._found.seconds(one, space.start) for one in (best, space.start))
        if best == space.start:
            reason = f"none of {len(self._found.first) - 1} other settings is faster"
        else:
            reason = f"{1e3 * seconds:.3g} ms, {space.start} takes {1e3 * before:.3g} ms"
        self._use(best, f"tuned: {reason}")
        self._tuning.chosen(self.traffic, best, seconds, before, reason)
        self._settle(seconds)

    def _settle(self, seconds: float) -> None:
        self.watch = Watch(seconds) if self.watch is None else self.watch.after_search(seconds)
        self.settled = True
        self.calls = 0  # the next look is a period away
        self._pending = self._samples = self._space = None
        self._found = Found()
        self._tuning.end_turn(self)

    def _look(self, seconds: float) -> None:
        assert self.watch is not None
        if not 0 < seconds < math.inf:
            return
        self.watch, again = look(self.watch, seconds)
        if not again:
            return
        reason = f"{1e3 * seconds:.3g} ms, for long, after {1e3 * self.watch.reference:.3g} ms"
        self._tuning.write("again", self.traffic, self.candidate, seconds, reason)
        way = self.candidate.way
        self._choice = Choice(way.algorithm, way.chunk_bytes, reason, reducers=way.reducers)
        self.settled = False
        self._first = 0

    def _use(self, candidate: Candidate, reason: str) -> None:
        self.candidate = candidate
        self.compiled = self._tuning.compile(candidate, reason)
        if self._owns_lanes and candidate.lanes is not None and candidate.lanes != self._lanes:
            self._tuning.set_lanes(candidate.lanes)
            self._lanes = candidate.lanes
