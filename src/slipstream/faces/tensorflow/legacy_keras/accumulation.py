"""Gradients of several batches, added up on each rank before they travel (`backward_passes_per_step`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

__all__ = ["Accumulation"]

Reduce = Callable[[Sequence[Any], Sequence[Any]], list[Any]]


class Accumulation:
    """Adds up the gradients of ``passes`` batches in variables of its own, eagerly and in tf.function.

    ``averages``: the mean of the batches is applied, not their sum. ``counter``: a tf.Variable, the number of passes
    since the last step: 0 where the gradients that were computed last are to be applied.
    """

    def __init__(self, passes: int, averages: bool, sparse_as_dense: bool) -> None:
        if not tf.compat.v1.executing_eagerly_outside_functions():
            raise ValueError(
                "backward_passes_per_step needs eager execution or tf.function: it is not for graphs of TensorFlow 1"
            )
        self._passes, self._averages, self._sparse_as_dense = passes, averages, sparse_as_dense
        self._sums: dict[Any, Any] = {}  # by reference of the variable
        with tf.init_scope():
            self.counter = tf.Variable(0, trainable=False, name="passes")

    def add(self, grads: Sequence[Any], variables: Sequence[Any], reduce: Reduce) -> list[Any]:
        """The sums of all ranks after the last pass; after others those of this rank. ValueError for IndexedSlices."""
        there = [i for i, one in enumerate(grads) if one is not None]
        chosen = [variables[i] for i in there]
        sums = [self._sum_of(variable, grads[i]) for i, variable in zip(there, chosen, strict=True)]
        added = [one.assign_add(tf.convert_to_tensor(grads[i])) for i, one in zip(there, sums, strict=True)]
        values = [tf.convert_to_tensor(one) for one in added]
        counter = self.counter.assign_add(1)

        def last() -> list[Any]:
            reduced = reduce(values, chosen)
            self.counter.assign(0)
            for one in sums:
                one.assign(tf.zeros_like(one))
            return [one / self._passes for one in reduced] if self._averages else reduced

        found = tf.cond(tf.equal(counter, self._passes), last, lambda: values) if there else []
        results: list[Any] = [None] * len(grads)
        for i, one in zip(there, found, strict=True):
            results[i] = one
        return results

    def _sum_of(self, variable: Any, grad: Any) -> Any:
        if isinstance(grad, tf.IndexedSlices) and not self._sparse_as_dense:
            raise ValueError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False."
            )
        found = self._sums.get(variable.ref())
        if found is None:
            with tf.init_scope():
                zeros = tf.zeros(variable.shape, grad.dtype)
                found = self._sums[variable.ref()] = tf.Variable(zeros, trainable=False)
        return found

    def apply(self, call: Callable[[], Any], optimizer: Any) -> Any:
        """Applies by ``call`` after the last pass, else only counts the optimizer's ``iterations``; returns them."""

        def now() -> Any:
            call()
            return tf.identity(optimizer.iterations)

        def later() -> Any:
            return tf.identity(optimizer.iterations.assign_add(1))

        return tf.cond(tf.equal(self.counter, 0), now, later)
