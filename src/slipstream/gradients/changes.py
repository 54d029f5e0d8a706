"""The exchange of changes: each rank steps on its own gradients, and Adasum makes one change of all ranks' changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.base import recording
from slipstream.comm.collectives.adasum import Vectors
from slipstream.comm.collectives.adasum_line import start_adasum
from slipstream.comm.collectives.interruption import Together, abort_interrupted, guarded_call
from slipstream.comm.membership.group import Group
from slipstream.gradients.agreement import check_agreement
from slipstream.gradients.numbers import Told
from slipstream.gradients.turns import turns_of

__all__ = ["ChangeExchange"]

_EXCHANGE = "the exchange of changes"


class ChangeExchange:
    """Reduces the changes of parameters over a group, again and again.

    ``vectors``: the changes, a vector of each parameter, by dtype. ``described``: each parameter in words, which the
    ranks compare at first (`slipstream.gradients.agreement.description`). ``group``: gives the group, and is asked anew
    in each step. ``stands_in``: for one of other ranks (`stand_ins`).
    """

    def __init__(
        self,
        vectors: Sequence[Vectors],
        described: Sequence[str],
        group: Callable[[], Group],
        stands_in: bool = False,
    ) -> None:
        self._vectors = vectors
        self._described = described
        self._group = group
        self._agreed = False
        if not stands_in:
            turns_of(group()).add(self)

    def reduce(self) -> None:
        """Makes this rank's changes those of all ranks. Every rank calls it.

        Raises SlipstreamError when a rank is lost, Mismatch when ranks have different parameters.
        """
        _guarded(self, turns=True)

    def take_part(self, wish: bool) -> None:
        """A step of the other ranks: this one changes nothing. Nobody has a ``wish`` here."""
        for vectors in self._vectors:
            vectors.memory[...] = 0
        _guarded(self, turns=False)

    def same(self) -> Told:
        """What all ranks must have alike, as far as others are told of it."""
        vectors = [[int(one.dtype), list(one.counts)] for one in self._vectors]
        return {"kind": "changes", "parameters": list(self._described), "vectors": vectors}

    def told(self) -> Told:
        """What a rank that lacks this exchange must know to take part."""
        return {"same": self.same()}

    def numbered(self, number: int) -> None:
        """Nothing depends on the number."""

    def take_over(self, stand_in: ChangeExchange) -> None:
        """Takes the place of one that has taken part for this rank: the ranks have compared the parameters then."""
        self._agreed = stand_in._agreed

    def rest(self) -> None:
        """Keeps its memory."""

    def broken_off(self, error: BaseException) -> None:
        """What breaks the exchange off, from outside, would leave the other ranks waiting."""
        abort_interrupted(error, _EXCHANGE, self._group)

    def _run(self, turns: bool) -> None:
        """``turns``: this rank tells the others whose turn it is; one that takes part has been told."""
        group = self._group()
        with Together(group, _EXCHANGE):
            turn = turns_of(group).begin(self) if turns else None
            if not self._agreed:
                check_agreement("optimise", self._described, group)
                self._agreed = True
            name = f"changes of {len(self._described)} parameters"
            works = [start_adasum(group, vectors, name) for vectors in self._vectors]
            with recording.span("gradients", "wait", bucket=name):
                for work in works:
                    work.wait()
            if turn is not None:
                turn.wait()


_guarded = guarded_call(ChangeExchange._run, lambda error, _, args, __: args[0].broken_off(error))
