"""Top-k: of each gradient the largest numbers travel, with their places; what does not travel is added to the next.

Every rank gathers what all have chosen, and adds it up in the order of the ranks, so all get the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.base.dtypes import DType
from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.work import DONE
from slipstream.comm.membership.group import Group
from slipstream.gradients.buckets import Bucket
from slipstream.gradients.compression import TopK
from slipstream.gradients.reductions import Terms, residuals
from slipstream.gradients.states import Array, States

__all__ = ["TopKReduction", "largest"]


def largest(numbers: Array, count: int) -> NDArray[np.intp]:
    """Where the ``count`` numbers of greatest magnitude are, ascending; NaN counts as greater than all."""
    if count >= numbers.size:
        return np.arange(numbers.size)
    chosen = np.argpartition(np.abs(numbers), numbers.size - count)[numbers.size - count :]
    chosen.sort()
    return chosen


class TopKReduction:
    """A message has all values of all gradients (float32), then their places (uint32), each gradient's from 0."""

    def __init__(self, way: TopK, bucket: Bucket, terms: Terms, states: States) -> None:
        self._gradients = [view for _, view in bucket.gradients()]
        self._counts = [way.count(view.size) for view in self._gradients]
        self._residuals = residuals(bucket, states)
        self._terms = terms
        self._name = f"{bucket.name or 'gradients'}, {way}"
        self._everyone = np.zeros((0, 2, 0), dtype=np.int32)
        self._work = DONE

    def start(self, group: Group, urgency: int = 0) -> None:
        """Chooses what travels, and begins to gather it."""
        total = sum(self._counts)
        message = np.empty((2, total), dtype=np.int32)
        values, places = message[0].view(np.float32), message[1].view(np.uint32)
        begin = 0
        for view, owed, count in zip(self._gradients, self._residuals, self._counts, strict=True):
            owed += view
            chosen = largest(owed, count)
            values[begin : begin + count], places[begin : begin + count] = owed[chosen], chosen
            owed[chosen] = 0
            if not np.isfinite(values[begin : begin + count]).all():
                owed[...] = 0  # the step is spoilt, on all ranks; the next one is not
            begin += count
        self._everyone = np.empty((group.size, 2, total), dtype=np.int32)
        self._work = addresses.all_gather(
            group,
            message.ctypes.data,
            self._everyone.ctypes.data,
            [message.size] * group.size,
            int(DType.I32),
            keep=(message, self._everyone),
            name=self._name,
            timeout=self._terms.timeout,
        )

    def go_on(self) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Adds up what all ranks have chosen."""
        self._work.wait()
        self._work = DONE
        factor = np.float32(self._terms.factor(len(self._everyone)))
        begin = 0
        for view, count in zip(self._gradients, self._counts, strict=True):
            view[...] = 0
            for values, places in self._everyone[:, :, begin : begin + count]:
                view[places.view(np.uint32)] += values.view(np.float32) * factor
            begin += count

    def wait(self) -> None:
        """Waits for what is under way."""
        self._work.wait()
        self._work = DONE
