"""The exchange of gradients: they fill buckets while backward makes them, and full buckets travel while backward
goes on.

All ranks must launch the same buckets in the same order, and nobody negotiates. So the order is fixed:
buckets are cut from one list of the parameters, equal on all ranks, and a bucket is launched when it and all
before it are full. The first step only watches: it sends nothing until backward is over, and then all ranks
agree on the order in which gradients became ready (`slipstream.gradients.order`). When they come in another order for
long, so that buckets wait, the ranks agree anew after a step. Parameters without a gradient on this rank take part with
zeros, at the end.
"""

from __future__ import annotations

import threading
import weakref
import zlib
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np

from slipstream.base import recording
from slipstream.base.dtypes import Op
from slipstream.base.errors import SlipstreamError
from slipstream.base.log import Log
from slipstream.comm.collectives import arrays
from slipstream.comm.collectives.interruption import Together, abort_interrupted, guarded_call
from slipstream.comm.membership.group import Group
from slipstream.gradients.buckets import Bucket, Parameter, bucket_of
from slipstream.gradients.likeness import Likeness
from slipstream.gradients.lines import Line
from slipstream.gradients.numbers import Told
from slipstream.gradients.order import Cut, Places, Watch, exposed, gains, places_of
from slipstream.gradients.policy import Policy
from slipstream.gradients.reductions import Exact, Reduction, Terms, without_effect
from slipstream.gradients.states import Saved, States, check_kind, check_state, saved_of
from slipstream.gradients.story import StepStory
from slipstream.gradients.turns import Turn, turns_of
from slipstream.gradients.ways import reduction_of

__all__ = ["GradientExchange", "Gradients"]


_Method = TypeVar("_Method", bound=Callable[..., Any])
_P = ParamSpec("_P")
_T = TypeVar("_T")

_EXCHANGE = "the exchange of gradients"
_MOST_SHOWN = 5  # parameters in the name of a bucket

_log = Log("slipstream.gradients")


class Gradients(Protocol):
    """The gradients of a framework's parameters, which are numbered from 0 in an order equal on all ranks.

    ``watch`` comes first. ``describe``, ``marks``, ``sparse`` and ``parameter`` are asked after the first backward
    pass, ``place`` then for every gradient that is not sparse, and again when buckets are cut anew; the others in every
    step.
    """

    def watch(self, ready: Callable[..., None]) -> None:
        """Has ``ready`` called each time backward has accumulated a gradient: with the parameter's number first."""

    def detach(self) -> None:
        """Ends what `watch` began."""

    def describe(self) -> Sequence[str]:
        """Each parameter in words, which the ranks compare (`slipstream.gradients.agreement.description`)."""

    def marks(self) -> Sequence[int]:
        """A number for each parameter, made of its values; none where ranks may still differ in these."""

    def sparse(self) -> Sequence[bool]:
        """Which gradients travel by themselves, in no bucket (`start_sparse`)."""

    def parameter(self, index: int) -> Parameter:
        """A parameter, in the dtype in which its gradient travels where no way is chosen for it (`policy`)."""

    def place(self, bucket: Bucket) -> None:
        """Takes note of where the gradients in ``bucket`` go, from the next `write` on."""

    def drop(self) -> None:
        """Leaves no parameter with a gradient."""

    def write(self, index: int) -> None:
        """Copies a gradient to its place, unless it is there already; zeros if there is none."""

    def read(self, index: int) -> None:
        """Makes what its place has now, the reduced gradient, the gradient of the parameter."""

    def start_sparse(self, index: int) -> Callable[[], None]:
        """Starts the reduction of a sparse gradient; returns what waits for it and takes the result over."""


def _guarded(method: _Method) -> _Method:
    return guarded_call(method, lambda error, _, args, __: args[0].broken_off(error))


class GradientExchange:
    """Reduces gradients over a group, again and again.

    ``count``: of parameters. ``group``: gives the group, and is asked anew in each step. ``op``: the engine's;
    ``prescale``, ``postscale``: factors before and after it. ``passes``: backward passes before a gradient is ready.
    ``groups``: parameters (by number) that share a bucket; ``most``: bytes of a bucket of others, equal on all ranks.
    ``policy`` says which gradients travel in fewer bits. ``overlaps``: the exchange may go on after the step (`launch`,
    `settle`), and gradients that backward computes last travel first, as the next forward pass needs them.
    ``stands_in``: for one of others (`stand_ins`). Backward may run in any thread, `synchronize` in the caller's.
    """

    def __init__(
        self,
        gradients: Gradients,
        count: int,
        *,
        group: Callable[[], Group],
        op: int,
        prescale: float,
        postscale: float,
        passes: int,
        groups: Sequence[Sequence[int]],
        most: int | None = None,
        policy: Policy | None = None,
        overlaps: bool = False,
        stands_in: bool = False,
    ) -> None:
        self.passes = passes
        self.touched = False
        self._gradients = gradients
        self._count = count
        self._group = group
        self._terms = Terms(op, prescale, postscale)
        self._policy = Policy() if policy is None else policy
        self._like = Likeness(gradients, count, group, self._terms, groups, self._policy, overlaps, most)
        self._states = States()
        self._overlaps = overlaps
        self._unsettled: list[Bucket] = []
        self._take: Callable[[list[int]], None] = _drop
        self._turn: Turn | None = None
        self._watch = Watch(count)
        self._due = False  # in the step before, a rank has told that gradients come in another order
        self._left = [passes] * count
        self._order: list[int] = []
        self._buckets: list[Bucket] | None = None
        self._known: Cut | None = None  # what to make buckets of, where other ranks have them already
        self._absent = False  # this rank takes part in a step of others
        self._bucket_of: dict[int, Bucket] = {}
        self._reductions: dict[Bucket, Reduction] = {}  # in the order of the buckets
        self._sparse: list[int] = []
        self._next = 0
        self._full: set[int] = set()
        self._lock = threading.RLock()
        self._amid = False  # a thread is amid a part of a step
        self._story = StepStory()
        self._line = Line(group)
        if not stands_in:
            turns_of(group()).add(self)
        gradients.watch(_ready(self))

    def detach(self) -> None:
        """Takes no more notice of backward."""
        self.settle()
        self._gradients.detach()
        self._line.end()

    def set_passes(self, passes: int) -> None:
        """From now on ``passes`` backward passes make a gradient."""
        self.passes = passes
        self._left = [passes] * self._count

    def reset(self) -> None:
        """Waits for what is under way and forgets it, and what compressions owe; then a new step begins."""
        self.settle()
        for reduction in self._reductions.values():
            reduction.wait()
        self._states.forget()
        self._begin()

    def state_dict(self) -> Saved:
        """What compressions remember of each parameter on this rank, as copies; between steps."""
        return saved_of(self._policy.way, self._states.copies(self._like.parameters()))

    def load_state_dict(self, saved: Saved) -> None:
        """Takes over what `state_dict` returned on this rank; ValueError if it does not fit."""
        check_kind(saved, self._policy.way)
        check_state(saved["parameters"], self._like.parameters())
        self._states.take_over(saved["parameters"])

    def inherit(self, before: GradientExchange, numbers: Sequence[int | None]) -> None:
        """Takes over what compressions remember in another exchange, of parameters that are here too.

        ``numbers``: here, of each parameter that is there; None for one that is not here.
        """
        there, here = before._like.parameters(), self._like.parameters()
        kept = [(one, here[number]) for one, number in zip(there, numbers, strict=True) if number is not None]
        self._states.inherit(before._states, kept)

    def ready(self, index: int) -> None:
        """A parameter's gradient has been accumulated once more."""
        if self._unsettled:
            self._check_settled(index)
            self.settle()
        self._alone(self._take_gradient, index)

    def _alone(self, part: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Runs a part of a step, when no thread is amid one. RuntimeError if this one is: a signal's handler calls."""
        with self._lock:
            if self._amid:
                raise RuntimeError(
                    "a signal's handler cannot use an optimizer while its thread exchanges the optimizer's gradients: "
                    "have the handler note the signal, and act on it after the step"
                )
            self._amid = True
            try:
                return part(*args, **kwargs)
            finally:
                self._amid = False

    def _take_gradient(self, index: int) -> None:
        if self._left[index] <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). "
                "Increase backward_passes_per_step to accumulate gradients locally."
            )
        self.touched = True
        self._story.gradient()
        self._left[index] -= 1
        if self._left[index]:
            return
        self._order.append(index)
        if index in self._bucket_of:
            self._fill(index)
            self._launch()

    @_guarded
    def synchronize(self) -> None:
        """Completes the step: every parameter has the reduced gradient afterwards. Every rank calls it.

        Raises SlipstreamError when a rank is lost, Mismatch when ranks have different parameters.
        """
        self.settle()
        self._alone(self._synchronize)

    def _synchronize(self) -> None:
        try:
            with Together(self._group(), _EXCHANGE):
                turn = self._begin_turn()
                again = self._complete()
                self._due = turn.wait() and not again
            self._story.stepped()
        finally:
            self._begin()

    @property
    def unsettled(self) -> bool:
        """Whether `launch` has left something under way that was not settled."""
        return bool(self._unsettled)

    def _check_settled(self, index: int) -> None:
        if any(bucket is self._bucket_of.get(index) for bucket in self._unsettled):
            name = self._gradients.parameter(index).name or f"number {index}"
            raise RuntimeError(
                f"parameter {name} was used in a forward pass before the step that updates it was complete: with "
                "overlap_forward, run the model or the parameter's own module, or call optimizer.settle() before"
            )

    @_guarded
    def launch(self, take: Callable[[list[int]], None]) -> bool:
        """Ends the step in place of `synchronize`, and does not wait; `settle` does. Every rank calls one of the two.

        ``take`` is called for each bucket whose gradients are reduced, with the numbers of its parameters. Until
        then these have no gradients. False: this step cannot be ended so, call `synchronize`.
        """
        self.settle()
        # Second parts, and messages by which ranks agree, would need one order of all optimizers.
        in_one_part = all(isinstance(reduction, Exact) for reduction in self._reductions.values())
        if self._buckets is None or self._due or self._sparse or not in_one_part:
            return False
        self._alone(self._launch_step, take, self._buckets)
        return True

    def _launch_step(self, take: Callable[[list[int]], None], buckets: list[Bucket]) -> None:
        with Together(self._group(), _EXCHANGE):
            self._turn = self._begin_turn()
            self._launch_rest()
            self._take = take
            self._unsettled = buckets[::-1]
            self._gradients.drop()
            self._left = [self.passes] * self._count
            self.touched = False
            self._story.stepped()

    @_guarded
    def settle(self, index: int | None = None) -> None:
        """Waits for what `launch` has left under way: the bucket of one parameter, or all. Does nothing otherwise.

        Raises SlipstreamError when a rank is lost.
        """
        if self._unsettled:
            self._alone(self._settle, index)

    def _settle(self, index: int | None) -> None:
        wanted = None if index is None else self._bucket_of.get(index)
        try:
            for bucket in [one for one in self._unsettled if index is None or one is wanted]:
                self._complete_bucket(bucket)
                bucket.begin()
                self._unsettled.remove(bucket)
                self._take([place.parameter.index for place in bucket.places])
            if not self._unsettled:
                assert self._turn is not None
                self._due = self._turn.wait()
                self._begin()
        except SlipstreamError:
            self._unsettled = []  # the job has failed: the step is lost, and another job begins with a new one
            self._begin()
            raise

    @_guarded
    def take_part(self, wish: bool) -> None:
        """Completes a step of the other ranks: this one has no gradients, and takes part with zeros.

        ``wish``: whether gradients come in another order on some rank.
        """
        self.settle()
        self._gradients.drop()
        self._alone(self._complete_alone, wish)

    def _complete_alone(self, wish: bool) -> None:
        self._absent = True
        try:
            with Together(self._group(), _EXCHANGE):
                again = self._complete()
                self._due = wish and not again
        finally:
            self._absent = False
            self._begin()

    def same(self) -> Told:
        """What all ranks must have alike, as far as others are told of it."""
        return {"kind": "gradients", **self._like.told()}

    def told(self) -> Told:
        """What a rank that lacks this exchange must know to take part."""
        cut_before = self._cut_before()
        return {
            "same": self.same(),
            "passes": self.passes,
            "marks": list(self._gradients.marks()),
            "line": self._line.purpose,
            "buckets": cut_before and [[parameter.index for parameter in part] for part in cut_before],
            "sparse": self._sparse,
            "due": self._due,
        }

    def stand_in(self, told: Told) -> None:
        """Becomes what the ranks have that have ``told`` of theirs; before anything else."""
        self._line.purpose = told["line"]
        self._sparse, self._due = told["sparse"], told["due"]
        if told["buckets"] is not None:
            travelling = [self._like.travelling(one) for one in self._like.asked()]
            self._known = [[travelling[index] for index in part] for part in told["buckets"]]

    def numbered(self, number: int) -> None:
        """It has this number among the exchanges of the group."""
        self._line.numbered(number)

    def take_over(self, stand_in: GradientExchange) -> None:
        """Takes the place of one that has taken part for this rank: with its group, buckets like its, and factors."""
        self._line, self._sparse, self._due = stand_in._line, stand_in._sparse, stand_in._due
        self._known = stand_in._cut_before()
        self._states.share_factors(stand_in._states)

    def rest(self) -> None:
        """Gives memory back that can be made anew: this one is a stand-in, and may not be needed again."""
        self._known = self._cut_before()
        self._buckets, self._bucket_of, self._reductions = None, {}, {}
        before, self._states = self._states, States()
        self._states.share_factors(before)
        self._line.end()

    def _cut_before(self) -> Cut | None:
        """The parameters of each bucket, if the ranks have agreed on buckets."""
        return self._known if self._buckets is None else self._parts()

    def broken_off(self, error: BaseException) -> None:
        """What breaks the exchange off, from outside, would leave the other ranks with less than all gradients."""
        abort_interrupted(error, _EXCHANGE, self._group)

    def _begin_turn(self) -> Turn:
        wish = self._buckets is not None and self._watch.wishes(self._order, self._parts, self._recut)
        return turns_of(self._group()).begin(self, wish)

    def _complete(self) -> bool:
        """Reduces all gradients; returns whether the ranks have agreed on their order anew."""
        if self._known is not None:
            self._line.begin_again()
            self._build(self._known, self._line.group())
            self._known = None
        elif self._buckets is None:
            self._learn()
        self._launch_rest()
        sparse = [self._gradients.start_sparse(index) for index in self._sparse]
        for reduction in self._reductions.values():
            reduction.go_on()
        for bucket in self._reductions:
            self._complete_bucket(bucket)
        for finish in sparse:
            finish()
        if self._due:
            self._learn_again()
        return self._due

    def _launch_rest(self) -> None:
        for index in self._bucket_of:
            if index not in self._full:
                self._fill(index)
        self._launch()

    def _complete_bucket(self, bucket: Bucket) -> None:
        with recording.span("gradients", "wait", bucket=bucket.name):
            self._reductions[bucket].finish()
        for place in bucket.places:
            self._gradients.read(place.parameter.index)

    def _begin(self) -> None:
        self._left = [self.passes] * self._count
        self._order.clear()
        self._full.clear()
        self._next = 0
        self.touched = False
        for bucket in self._buckets or []:
            bucket.begin()

    def _learn(self) -> None:
        """After the first backward: agree on the order and on which gradients are sparse, and cut the
        buckets.
        """
        self._line.take_reducers()
        group = self._line.group()
        sparse = np.array(self._gradients.sparse(), dtype=np.bool_)
        parameters = self._like.compare(self.passes, group)
        flags = arrays.all_reduce(sparse, Op.MAX, group=group).tolist()
        places = arrays.all_reduce(places_of(self._order, self._count), Op.MAX, group=group)
        self._sparse = [index for index, flag in enumerate(flags) if flag]
        in_buckets = [one for one in reversed(parameters) if not flags[one.index]]
        self._build(self._like.cut(in_buckets, places), group)

    def _learn_again(self) -> None:
        """Gradients come in another order for long: agree on it, and cut the buckets anew if that is worth it.

        The gradients of this step stay where they are, in the memory of the buckets that there were.
        """
        group = self._line.group()
        places = arrays.all_reduce(self._watch.places, Op.MAX, group=group)
        self._watch.agreed()
        before, after = self._parts(), self._recut(places)
        if _is_better(before, after, places, group.rank == 0):
            self._build(after, group)

    def _build(self, parts: Cut, group: Group) -> None:
        self._buckets = [bucket_of(part, group, _label(part)) for part in parts]
        self._reductions = {
            bucket: reduction_of(bucket, self._terms, self._states) for bucket in self._buckets
        }
        for bucket in self._buckets:
            self._gradients.place(bucket)
            for place in bucket.places:
                self._bucket_of[place.parameter.index] = bucket

    def _parts(self) -> Cut:
        """The parameters of each bucket that there is."""
        return [[place.parameter for place in bucket.places] for bucket in self._buckets or ()]

    def _recut(self, places: Places) -> Cut:
        return self._like.cut([parameter for part in self._parts() for parameter in part], places)

    def _fill(self, index: int) -> None:
        self._gradients.write(index)
        self._full.add(index)
        self._bucket_of[index].waiting -= 1

    def _launch(self) -> None:
        """Launches buckets in order, as far as they are full."""
        buckets = self._buckets or []
        while self._next < len(buckets) and not buckets[self._next].waiting:
            bucket, group = buckets[self._next], self._line.group()
            with Together(group, _EXCHANGE):
                if self._absent:
                    bucket.fill(without_effect(bucket.dtype, self._terms.op))
                self._reductions[bucket].start(group, self._next if self._overlaps else 0)
                self._next += 1
            recording.mark(
                "gradients",
                "launch",
                bucket=bucket.name,
                parameters=len(bucket.places),
                elements=bucket.count,
            )


def _drop(_: list[int]) -> None:
    """Takes gradients that nobody wants."""


def _is_better(before: Cut, after: Cut, places: Places, logs: bool) -> bool:
    """Whether other buckets are worth a change, of which the timeline and, if this rank ``logs``, the log tell."""
    facts = {
        "buckets": len(after),
        "percent_hidden_before": round(100 - 100 * exposed(before, places)),
        "percent_hidden_after": round(100 - 100 * exposed(after, places)),
    }
    better = gains(before, after, places)
    recording.mark("gradients", "order learnt again" if better else "order kept", **facts)
    if better and logs:
        _log.info(
            "gradients come in another order: %d buckets are cut anew, which can hide %d %% of their exchange "
            "behind backward in place of %d %%",
            len(after),
            facts["percent_hidden_after"],
            facts["percent_hidden_before"],
        )
    return better


def _label(parameters: Sequence[Parameter]) -> str:
    """What a bucket is called: part of what the ranks compare, and for people."""
    names = [parameter.name for parameter in parameters]
    if not any(names):
        return ""
    shown = ", ".join(names[:_MOST_SHOWN])[:200] + (", ..." if len(names) > _MOST_SHOWN else "")
    count = f"{len(names)} parameter{'' if len(names) == 1 else 's'}"
    return f"gradients of {shown} ({count}, checksum of the names {zlib.crc32(repr(names).encode()):08x})"


def _ready(exchange: GradientExchange) -> Callable[..., None]:
    # weak: the parameters may outlive the optimizer, and must not keep its buckets
    reference = weakref.ref(exchange)

    def ready(index: int, *_: object) -> None:
        target = reference()
        if target is not None:
            target.ready(index)

    def broken_off(error: BaseException, *_: object) -> None:
        target = reference()
        if target is not None:
            target.broken_off(error)

    return guarded_call(ready, broken_off)
