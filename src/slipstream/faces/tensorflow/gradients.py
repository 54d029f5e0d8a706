"""Gradients of TensorFlow's variables, reduced together: what a tape or an optimizer has, of one step."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from slipstream.base.arguments import as_number
from slipstream.base.dtypes import DType, WireType, as_wire
from slipstream.comm.collectives.wires import wire_of_job
from slipstream.faces.arrays import gradients
from slipstream.faces.arrays.compression import AnyCompression, Compression, way_and_compressor
from slipstream.faces.arrays.gradients import Terms, is_alone
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Adasum, Average
from slipstream.faces.tensorflow.bridge import run
from slipstream.faces.tensorflow.lines import ranks_of
from slipstream.faces.tensorflow.native import all_reduce_call
from slipstream.faces.tensorflow.order import STEP
from slipstream.faces.tensorflow.parts import reduced_in_parts
from slipstream.faces.tensorflow.reductions import grouped_allreduce
from slipstream.faces.tensorflow.xla import called, is_compiling, refuse
from slipstream.gradients.compression import Cast, Wire

__all__ = ["ReduceGradients"]


class ReduceGradients:
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

    @classmethod
    def of(
        cls, terms: Terms, compressor: AnyCompression | None, sparse_as_dense: bool, groups: Any
    ) -> ReduceGradients:
        """One from what the arguments have become."""
        made = cls.__new__(cls)
        made._terms, made._compressor, made.process_set = terms, compressor, terms.process_set
        made._sparse_as_dense, made._groups = sparse_as_dense, groups
        return made

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
            others = [part for i in sparse for part in (results[i].values, results[i].indices)]
            reduced = self._reduce([results[i] for i in dense], [variables[i] for i in dense], others)
            for i, one in zip(dense, reduced, strict=True):
                results[i] = one
        if sparse:
            given = [results[i] for i in sparse]
            found = grouped_allreduce(given, op=self._terms.op, process_set=self.process_set)
            for i, one in zip(sparse, found, strict=True):
                results[i] = one
        return results

    def _reduce(self, grads: list[Any], variables: list[Any], others: list[Any]) -> list[Any]:
        contexts: list[Any] = []
        if self._compressor is not None:
            small = [self._compressor.compress(one) for one in grads]
            grads, contexts = [one for one, _ in small], [ctx for _, ctx in small]
        grads = [tf.convert_to_tensor(one) for one in grads]
        found = self._by_xla(grads) if is_compiling() else self._by_python(grads, variables, others)
        if self._compressor is None:
            return found
        return [self._compressor.decompress(one, ctx) for one, ctx in zip(found, contexts, strict=True)]

    def _by_python(self, grads: list[Any], variables: list[Any], others: list[Any]) -> list[Any]:
        names = gradients.names_of(variables)
        terms = self._terms.with_groups(gradients.groups_of(self._groups, variables))

        def work(*arrays: Any) -> list[Any]:
            return gradients.reduce_gradients(arrays, names, terms)

        found = reduced_in_parts(grads, names, terms, others)
        if found is None:
            found = run(work, grads, [(one.dtype, one.shape) for one in grads])
        if not tf.executing_eagerly() and terms.op != Adasum:  # that has no turn
            ranks = ranks_of(self.process_set).encode()
            found[0].op._set_attr(STEP, attr_value_pb2.AttrValue(s=ranks))
        return found

    def _by_xla(self, grads: list[Any]) -> list[Any]:
        """In a function that XLA compiles: one call, without buckets and groups."""
        what = "the reduction of gradients"
        terms, way = self._terms, self._terms.way
        cast, wire = None, WireType.EXACT
        if way is None:
            wire = wire_of_job(terms.process_set.group)
        elif isinstance(way, Cast):
            cast = _DTYPES[way.to]
        elif isinstance(way, Wire) and not way.feedback:
            wire = as_wire(way.name)
        else:
            refuse(
                what, f"{way} goes through Python. Take Compression.none, fp16, bf16, f8, int8 or wire(...)"
            )
        scales = (1.0 / terms.predivide, terms.predivide) if terms.op == Average else (1.0, 1.0)
        call = all_reduce_call(terms.op, *scales, terms.process_set, wire, None)
        small = [tf.cast(one, cast) if cast and one.dtype.is_floating else one for one in grads]
        found = called(call, small, what if call else f"{what} by Adasum")
        return [tf.cast(one, given.dtype) for one, given in zip(found, grads, strict=True)]


_DTYPES: dict[DType | None, Any] = {None: None, DType.F16: tf.float16, DType.BF16: tf.bfloat16}


def _is_sparse(grad: Any) -> bool:
    return isinstance(grad, tf.IndexedSlices)
