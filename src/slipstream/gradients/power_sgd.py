"""PowerSGD: of a gradient seen as a matrix M (rows, columns), two thin factors travel instead.

    P = sum of M Q      over the ranks (rows, rank), with the Q of the step before
    P = orthonormal(P)
    Q = sum of M' P     (columns, rank)
    M ~ P Q'

What a rank's M has beyond that is added to its next gradient. The ranks share P and Q, and what they compute from
them they compute in the same order of elementwise operations, so that all get the same bits on whatever processor;
products of a rank's own M may differ, and go through the machine's fast routines.
"""

from __future__ import annotations

import numpy as np

from slipstream.base.dtypes import Op
from slipstream.comm.collectives.work import DONE
from slipstream.comm.membership.group import Group
from slipstream.gradients.buckets import Bucket, Parameter
from slipstream.gradients.compression import PowerSGD
from slipstream.gradients.reductions import Terms, residuals, second, start_sum
from slipstream.gradients.states import FACTOR, Array, State, States

__all__ = ["PowerSGDReduction", "orthonormal", "product"]

_BLOCK_NUMBERS = 16384  # of a product that is made at a time: it stays in the cache
_NOTHING = 1e-6  # what is left of a column, as a share of it, that is no direction of its own


@np.errstate(all="ignore")  # what overflows spoils the step, which every rank sees
def orthonormal(columns: Array) -> Array:
    """An orthonormal basis (rows, rank) of the columns' space; zeros for columns that add nothing to it.

    Modified Gram-Schmidt in float64, by sums whose order does not depend on the processor.
    """
    rows = np.ascontiguousarray(columns.T, dtype=np.float64)
    for i, row in enumerate(rows):
        before = float(np.add.reduce(row * row))
        for other in rows[:i]:
            row -= np.add.reduce(row * other) * other
        left = float(np.add.reduce(row * row))
        # not <=: NaN is kept
        if before == 0 or left <= _NOTHING**2 * before:
            row[...] = 0
        else:
            row /= np.sqrt(left)
    return np.ascontiguousarray(rows.T, dtype=np.float32)


@np.errstate(all="ignore")
def product(p: Array, q: Array, out: Array) -> None:
    """``out`` (rows, columns) = p q', with the same bits on all processors."""
    rows = max(1, _BLOCK_NUMBERS // max(len(q), 1))
    turned = np.ascontiguousarray(q.T)
    scratch = np.empty((rows, len(q)), dtype=np.float32)
    for begin in range(0, len(p), rows):
        block, part = out[begin : begin + rows], p[begin : begin + rows]
        room = scratch[: len(block)]
        np.multiply(part[:, :1], turned[0], out=block)
        for i in range(1, len(turned)):
            np.multiply(part[:, i : i + 1], turned[i], out=room)
            block += room


class _Matrix:
    """One gradient: its place in the bucket, its residual, and its parts of the two messages."""

    def __init__(self, parameter: Parameter, view: Array, owed: Array, rank: int, state: State) -> None:
        self.shape = parameter.shape[0], parameter.count // parameter.shape[0]
        self.rank = min(rank, *self.shape)
        self.out = view.reshape(self.shape)
        self.owed = owed.reshape(self.shape)
        self.seed = parameter.index
        self.state = state
        self.p = self.q = self.owed[:0]  # their places in the messages of this step

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of P and of Q."""
        return self.shape[0] * self.rank, self.shape[1] * self.rank

    def factor(self) -> Array:
        """Q of the step before, with new columns for those that are lost; all new in the first step."""
        wanted = self.shape[1], self.rank
        found = self.state.get(FACTOR)
        fresh = np.random.default_rng(self.seed).standard_normal(wanted).astype(np.float32)
        if found is None or found.shape != wanted:
            return fresh
        return np.where(found.any(axis=0), found, fresh)


class PowerSGDReduction:
    """Its messages hold the factors of all matrices of the bucket."""

    def __init__(self, way: PowerSGD, bucket: Bucket, terms: Terms, states: States) -> None:
        self._terms = terms
        self._name = f"{bucket.name or 'gradients'}, {way}"
        self._matrices = [
            _Matrix(parameter, view, owed, way.rank, states.of(parameter))
            for (parameter, view), owed in zip(bucket.gradients(), residuals(bucket, states), strict=True)
        ]
        self._group: Group | None = None
        self._work = DONE

    @np.errstate(all="ignore")
    def start(self, group: Group, urgency: int = 0) -> None:
        """Begins to add up P."""
        message = np.empty(sum(matrix.sizes[0] for matrix in self._matrices), dtype=np.float32)
        begin = 0
        for matrix in self._matrices:
            size = matrix.sizes[0]
            matrix.p = message[begin : begin + size].reshape(-1, matrix.rank)
            matrix.owed += matrix.out
            np.matmul(matrix.owed, matrix.factor(), out=matrix.p)
            begin += size
        self._group = group
        self._work = start_sum(
            group, message, f"{self._name}: P", Terms(int(Op.SUM), timeout=self._terms.timeout)
        )

    @np.errstate(all="ignore")
    def go_on(self) -> None:
        """Begins to add up Q."""
        self._work.wait()
        message = np.empty(sum(matrix.sizes[1] for matrix in self._matrices), dtype=np.float32)
        begin = 0
        for matrix in self._matrices:
            size = matrix.sizes[1]
            matrix.p = orthonormal(matrix.p)
            matrix.q = message[begin : begin + size].reshape(-1, matrix.rank)
            np.matmul(matrix.owed.T, matrix.p, out=matrix.q)
            matrix.owed -= np.matmul(matrix.p, matrix.q.T)
            begin += size
        assert self._group is not None
        self._work = start_sum(second(self._group), message, f"{self._name}: Q", self._terms)

    def finish(self) -> None:
        """Puts the products of the factors into the bucket."""
        self._work.wait()
        self._work = DONE
        for matrix in self._matrices:
            product(matrix.p, matrix.q, matrix.out)
            if np.isfinite(matrix.q).all():
                matrix.state[FACTOR] = matrix.q.copy()
            else:  # the step is spoilt, on all ranks; the next one is not
                matrix.state.pop(FACTOR, None)
                matrix.owed[...] = 0

    def wait(self) -> None:
        """Waits for what is under way."""
        self._work.wait()
        self._work = DONE
