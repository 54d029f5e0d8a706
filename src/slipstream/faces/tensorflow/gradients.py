"""Gradients of TensorFlow's variables, reduced together once a tape or an optimizer has all of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from slipstream.base.arguments import as_number
from slipstream.faces.arrays import gradients
from slipstream.faces.arrays.compression import AnyCompression, Compression, way_and_compressor
from slipstream.faces.arrays.gradients import Terms, is_alone
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Adasum, Average
from slipstream.faces.tensorflow.bridge import run
from slipstream.faces.tensorflow.reductions import grouped_allreduce

__all__ = ["GradientReducer"]


class GradientReducer:
    """Reduces lists of gradients, as the arguments of `DistributedOptimizer` say; ValueError if they do not fit."""

    def __init__(
        self,
        *,
        compression: AnyCompression = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        way, self._compressor = way_and_compressor(compression)
        predivide = as_number("gradient_predivide_factor", gradient_predivide_factor)
        self._terms = Terms(op, predivide, way, (), process_set)
        self._sparse_as_dense = sparse_as_dense
        if num_groups:
            warnings.warn("num_groups has been replaced by groups", DeprecationWarning, stacklevel=4)
            groups = num_groups if groups is None else groups
        if groups is not None and not (isinstance(groups, list | tuple) or groups > 0):
            raise ValueError("groups should be a non-negative integer or a list of list of tf.Variable.")
        self._groups = groups
        self.process_set = process_set

    def __call__(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The reduced gradients of ``variables``; those that are None stay so. Every rank of the set calls it."""
        results = list(grads)
        if is_alone(self.process_set):
            return results
        if self._sparse_as_dense or self._terms.op == Adasum:
            results = [tf.convert_to_tensor(one) if _is_sparse(one) else one for one in results]
        sparse = [i for i, one in enumerate(results) if _is_sparse(one)]
        dense = [i for i, one in enumerate(results) if one is not None and i not in sparse]
        if dense:
            reduced = self._reduce([results[i] for i in dense], [variables[i] for i in dense])
            for i, one in zip(dense, reduced, strict=True):
                results[i] = one
        if sparse:
            given = [results[i] for i in sparse]
            found = grouped_allreduce(given, op=self._terms.op, process_set=self.process_set)
            for i, one in zip(sparse, found, strict=True):
                results[i] = one
        return results

    def _reduce(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        contexts: list[Any] = []
        if self._compressor is not None:
            small = [self._compressor.compress(one) for one in grads]
            grads, contexts = [one for one, _ in small], [ctx for _, ctx in small]
        names = _names_of(variables)
        terms = Terms(
            self._terms.op,
            self._terms.predivide,
            self._terms.way,
            _as_numbers(self._groups, variables),
            self.process_set,
        )

        def work(*arrays: Any) -> list[Any]:
            return gradients.reduce_gradients(arrays, names, terms)

        grads = [tf.convert_to_tensor(one) for one in grads]
        found = run(work, grads, [(one.dtype, one.shape) for one in grads])
        if self._compressor is None:
            return found
        return [self._compressor.decompress(one, ctx) for one, ctx in zip(found, contexts, strict=True)]


def _is_sparse(grad: Any) -> bool:
    return isinstance(grad, tf.IndexedSlices)


def _names_of(variables: Iterable[Any]) -> list[str]:
    """What the variables are called; "" for each if they are not told apart so: Keras has many a "kernel"."""
    names = [str(getattr(one, "path", None) or getattr(one, "name", "")) for one in variables]
    return names if all(names) and len(set(names)) == len(names) else [""] * len(names)


def _as_numbers(groups: Any, variables: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """``groups`` as the numbers of the variables; of a number of groups, parts of about the same length."""
    if groups is None:
        return ()
    if not isinstance(groups, list | tuple):
        count = min(int(groups), len(variables))
        ends = [number * len(variables) // count for number in range(count + 1)]
        return tuple(tuple(range(low, high)) for low, high in zip(ends, ends[1:], strict=False))
    number_of = {id(one): number for number, one in enumerate(variables)}
    return tuple(tuple(number_of[id(one)] for one in group if id(one) in number_of) for group in groups)
