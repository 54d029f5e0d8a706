"""`DistributedOptimizer`: any optimizer of Keras 3, which applies gradients that are reduced over the job.

Keras hands every optimizer its gradients through ``apply``, on all back ends. LossScaleOptimizer looks there whether
the gradients are finite: ranks must see the same ones, so it is the one that reduces, and the optimizer in it does not.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import keras

from slipstream.base.arguments import as_number
from slipstream.faces.arrays import gradients
from slipstream.faces.arrays.compression import AnyCompression, Compression, way_and_compressor
from slipstream.faces.arrays.gradients import Terms, is_alone
from slipstream.faces.arrays.keras_kinds import is_legacy
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Average
from slipstream.faces.keras.backends import run

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer", "is_distributed"]

_LossScale = keras.optimizers.LossScaleOptimizer


class _Reduce:
    """Reduces the gradients of an optimizer."""

    def __init__(
        self,
        terms: Terms,
        compressor: AnyCompression | None,
        sparse_as_dense: bool,
        groups: Any,
        factor: float,
    ) -> None:
        self.terms = terms
        self._compressor = compressor
        self._sparse_as_dense = sparse_as_dense
        self._groups = groups
        self._factor = factor  # of every gradient
        self.local: set[int] = set()  # ids of the variables whose gradients stay here
        self.scale_local = True

    def __call__(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        results = list(grads)
        if not is_alone(self.terms.process_set):
            self._reduce_into(results, variables)
        if self._factor != 1.0:
            results = [_times(one, self._factor) for one in results]
        return results

    def _reduce_into(self, results: list[Any], variables: Sequence[Any]) -> None:
        size = self.terms.process_set.size() or 1
        here = [id(one) in self.local for one in variables]
        for i, is_local in enumerate(here):
            if is_local and self.scale_local:
                results[i] = _times(results[i], 1.0 / size)
        shared = [i for i, one in enumerate(results) if one is not None and not here[i]]
        given = [results[i] for i in shared]
        chosen = [variables[i] for i in shared]
        if keras.config.backend() == "tensorflow":  # which alone has sparse gradients
            reduced = self._by_tensorflow(given, chosen)
        else:
            reduced = self._by_arrays(given, chosen)
        for i, one in zip(shared, reduced, strict=True):
            results[i] = one

    def _by_tensorflow(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        found = importlib.import_module("slipstream.faces.tensorflow.gradients")
        reduce = found.ReduceGradients.of(self.terms, self._compressor, self._sparse_as_dense, self._groups)
        reduced: list[Any] = reduce(grads, variables)
        return reduced

    def _by_arrays(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        if not grads:
            return []
        contexts: list[Any] = []
        if self._compressor is not None:
            small = [self._compressor.compress(one) for one in grads]
            grads, contexts = [one for one, _ in small], [ctx for _, ctx in small]
        names = gradients.names_of(variables)
        terms = self.terms.with_groups(gradients.groups_of(self._groups, variables))

        def work(*arrays: Any) -> Any:
            return gradients.reduce_gradients(arrays, names, terms)

        found = run(work, grads)
        if self._compressor is None:
            return found
        return [self._compressor.decompress(one, ctx) for one, ctx in zip(found, contexts, strict=True)]


def _times(grad: Any, factor: float) -> Any:
    """A gradient, or tf.IndexedSlices, or None, times a factor."""
    if grad is None:
        return None
    if hasattr(grad, "indices") and hasattr(grad, "dense_shape"):
        return type(grad)(grad.values * factor, grad.indices, grad.dense_shape)
    return grad * factor


class _Distributed:
    """Comes before the user's optimizer class in the classes made by `DistributedOptimizer`."""

    _slipstream: _Reduce
    _slipstream_above: bool  # the optimizer around this one reduces

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """Reduces the gradients over all ranks and applies them; every rank calls it."""
        mine: Any = super()
        if self._slipstream_above or not grads:
            return mine.apply(grads, trainable_variables)
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)  # type: ignore[attr-defined]
        return mine.apply(self._slipstream(grads, variables), trainable_variables)

    def register_local_var(self, var: Any) -> None:
        """Has the gradient of this variable stay on this rank."""
        self._slipstream.local.add(id(var))


class _DistributedLossScale(_Distributed):
    """Of a LossScaleOptimizer, which has a way of its own where Keras passes all state along."""

    def stateless_apply(
        self, optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any
    ) -> Any:
        """Reduces the gradients over all ranks and applies them; every rank calls it."""
        mine: Any = super()
        reduced = self._slipstream(grads, self._trainable_variables)  # type: ignore[attr-defined]
        return mine.stateless_apply(optimizer_variables, reduced, trainable_variables)


@functools.cache
def _class_of(kind: Any) -> Any:
    first = _DistributedLossScale if issubclass(kind, _LossScale) else _Distributed
    # The names are the user's class's, so that a model that is saved can be loaded without slipstream.
    return type(kind.__name__, (first, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})


def is_distributed(optimizer: Any) -> bool:
    """Whether the optimizer, or one in it, reduces gradients."""
    return isinstance(optimizer, _Distributed)


def _made_around(init: Any) -> Any:
    """LossScaleOptimizer.__init__, such that one around a `DistributedOptimizer` reduces in its place.

    Keras itself puts one around the optimizer of a model that computes in float16.
    """

    @functools.wraps(init)
    def call(self: Any, inner_optimizer: Any, *args: Any, **kwargs: Any) -> None:
        init(self, inner_optimizer, *args, **kwargs)
        if isinstance(inner_optimizer, _Distributed) and not isinstance(self, _Distributed):
            self.__class__ = _class_of(self.__class__)
            _give(self, inner_optimizer._slipstream)
            inner_optimizer._slipstream_above = True

    return call


_LossScale.__init__ = _made_around(_LossScale.__init__)


def _give(optimizer: Any, reduce: _Reduce) -> None:
    optimizer.__dict__.update({"_slipstream": reduce, "_slipstream_above": False})


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps an optimizer of Keras 3 so that ``apply`` reduces the gradients over the ranks before it applies them.

    Returns an instance of a new subclass of the optimizer's class, which shares its state. It works on the back ends
    tensorflow, jax and torch; with mixed precision, gradient accumulation and EMA; in compiled functions too, also
    where XLA compiles them, on CPUs. A model is saved with the optimizer that was wrapped.

    name, device_dense, device_sparse: accepted, and change nothing
    compression: what travels, see `Compression`; sums are formed in float32
    sparse_as_dense: tf.IndexedSlices travel dense, and are dense afterwards; else their rows are gathered
    gradient_predivide_factor: with Average, gradients are divided by it before the sum, and by size/it after
    op: Average, Sum, Min, Max, Product or Adasum of the gradients
    backward_passes_per_step: so many batches are accumulated before variables change, by Keras's
    gradient_accumulation_steps: before the optimizer is built. Gradients travel with each batch all the same
    average_aggregated_gradients: of accumulated batches the mean is applied, not the sum
    groups: number of groups, or lists of variables, whose gradients travel together; num_groups is its old name
    process_set: the ranks to reduce over; on others the optimizer works alone
    scale_local_gradients: gradients of variables that ``register_local_var`` names are divided by the number of ranks

    An optimizer of legacy Keras is wrapped as `slipstream.tf_keras.DistributedOptimizer` does.

    All ranks must have gradients for the same variables: Mismatch otherwise, on all of them. Raises TypeError for what
    is no optimizer of Keras, ValueError for one that is wrapped already and for arguments that do not fit.

    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    """
    if is_legacy(optimizer):
        return _of_legacy_keras("DistributedOptimizer")(
            optimizer,
            name,
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            gradient_predivide_factor,
            op,
            backward_passes_per_step,
            average_aggregated_gradients,
            num_groups,
            groups,
            process_set,
            scale_local_gradients,
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"DistributedOptimizer takes an optimizer of Keras 3, not {type(optimizer).__name__}")
    inner = getattr(optimizer, "inner_optimizer", None)
    if is_distributed(optimizer) or is_distributed(inner):
        raise ValueError("this optimizer is wrapped already: its gradients would be reduced twice")
    way, compressor = way_and_compressor(compression)
    predivide = as_number("gradient_predivide_factor", gradient_predivide_factor)
    factor = _accumulate(inner or optimizer, backward_passes_per_step, average_aggregated_gradients)
    terms = Terms(op, predivide, way, (), process_set)
    groups = num_groups or None if groups is None else groups
    wrapped = object.__new__(_class_of(optimizer.__class__))
    object.__setattr__(wrapped, "__dict__", optimizer.__dict__)
    reduce = _Reduce(terms, compressor, sparse_as_dense, groups, factor)
    reduce.scale_local = scale_local_gradients
    _give(wrapped, reduce)
    return wrapped


def _of_legacy_keras(name: str) -> Any:
    """The function of this name for optimizers of `tf_keras`."""
    return getattr(importlib.import_module("slipstream.faces.tensorflow.legacy_keras.optimizer"), name)


def _accumulate(optimizer: Any, passes: int, averages: bool) -> float:
    """Has the optimizer accumulate; returns a factor of gradients, since Keras applies the mean of what it has."""
    if passes < 1:
        raise ValueError("backward_passes_per_step must be at least 1")
    if passes == 1:
        return 1.0
    if optimizer.built:
        raise ValueError("backward_passes_per_step needs an optimizer that is not built yet: wrap it before")
    if optimizer.gradient_accumulation_steps not in (None, passes):
        raise ValueError(
            f"backward_passes_per_step={passes}, and the optimizer has gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}: give one of them"
        )
    optimizer.gradient_accumulation_steps = passes
    return 1.0 if averages else float(passes)


def PartialDistributedOptimizer(
    optimizer: Any, *args: Any, local_layers: Any = None, scale_local_gradients: bool = True, **kwargs: Any
) -> Any:
    """`DistributedOptimizer`, but gradients of ``local_layers`` (a layer, or some) stay on each rank.

    The layers must be built. Raises ValueError for a layer that is none of Keras's.

    >>> layer = keras.layers.Dense(1)
    >>> optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=[layer])
    """
    if is_legacy(optimizer):
        return _of_legacy_keras("PartialDistributedOptimizer")(
            optimizer, *args, local_layers=local_layers, scale_local_gradients=scale_local_gradients, **kwargs
        )
    layers = [] if local_layers is None else local_layers
    layers = list(layers) if isinstance(layers, list | tuple | set) else [layers]
    if not all(isinstance(one, keras.layers.Layer) for one in layers):
        raise ValueError("All local layers must be of keras.layers.Layer type.")
    wrapped = DistributedOptimizer(optimizer, *args, **kwargs)
    wrapped._slipstream.scale_local = scale_local_gradients
    for layer in layers:
        for variable in layer.trainable_weights:
            wrapped.register_local_var(variable)
    return wrapped
