"""`DistributedOptimizer` of legacy Keras (`tf_keras`): an optimizer that reduces gradients when it computes them.

Both kinds of optimizers are meant, ``tf_keras.optimizers`` and ``tf_keras.optimizers.legacy``. As with Horovod,
``minimize``, ``model.fit``, ``compute_gradients`` and ``get_gradients`` reduce; ``apply_gradients`` applies what it is
given. LossScaleOptimizer skips a step whose gradients are not finite: ranks must see the same ones, so it is the one
that reduces, and the optimizer in it does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from slipstream.faces.arrays.compression import AnyCompression, Compression
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Average
from slipstream.faces.tensorflow.gradients import ReduceGradients
from slipstream.faces.tensorflow.legacy_keras.accumulation import Accumulation
from slipstream.faces.tensorflow.tape import scaled

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer", "is_distributed"]

_KINDS = tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer


class _Reduce:
    """Reduces the gradients of an optimizer, those of ``local`` variables aside."""

    def __init__(self, reduce: ReduceGradients, scale_local: bool) -> None:
        self._reduce = reduce
        self.scale_local = scale_local
        self.local: set[Any] = set()  # references to the variables whose gradients stay here

    def __call__(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        results = list(grads)
        here = [one.ref() in self.local for one in variables]
        if self.scale_local:
            size = self._reduce.process_set.size() or 1
            results = [scaled(one, size) if own else one for one, own in zip(results, here, strict=True)]
        shared = [i for i, own in enumerate(here) if not own]
        reduced = self._reduce([results[i] for i in shared], [variables[i] for i in shared])
        for i, one in zip(shared, reduced, strict=True):
            results[i] = one
        return results


class _State:
    """What an optimizer has of slipstream: how it reduces, and over how many passes it accumulates."""

    def __init__(self, reduce: _Reduce, accumulation: Accumulation | None) -> None:
        self.reduce, self.accumulation = reduce, accumulation
        self.above = False  # the optimizer around this one does it

    def gradients(self, pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Pairs of reduced gradient and variable."""
        pairs = list(pairs)
        if self.above or not pairs:
            return pairs
        grads, variables = [one for one, _ in pairs], [one for _, one in pairs]
        if self.accumulation is None:
            found = self.reduce(grads, variables)
        else:
            found = self.accumulation.add(grads, variables, self.reduce)
        return list(zip(found, variables, strict=True))


class _Distributed:
    """Comes before the user's optimizer class in the classes made by `DistributedOptimizer`."""

    _slipstream_made: Callable[[], _State]

    @property
    def _slipstream(self) -> _State:
        """That of this optimizer: ``from_config`` makes one with the arguments of `DistributedOptimizer`, too."""
        found = self.__dict__.get("_slipstream_state")
        if found is None:
            found = self.__dict__["_slipstream_state"] = type(self)._slipstream_made()
        state: _State = found
        return state

    @property
    def _agg_helper(self) -> Accumulation | None:
        """As Horovod calls what accumulates; its ``counter`` is that of the passes since the last step."""
        return self._slipstream.accumulation

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
        """Pairs of reduced gradient and variable; every rank calls it. Arguments: those of the optimizer's class."""
        return self._compute_gradients(loss, var_list, tape=tape)

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        mine: Any = super()
        tape = tf.GradientTape() if tape is None else tape
        if hasattr(mine, "_compute_gradients"):
            return self._slipstream.gradients(mine._compute_gradients(loss, var_list, grad_loss, tape=tape))
        return self._slipstream.gradients(mine.compute_gradients(loss, var_list, tape=tape))

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """The reduced gradients of ``params``; every rank calls it. Graphs of legacy optimizers use it."""
        mine: Any = super()
        found = mine.get_gradients(loss, params)
        return [
            one for one, _ in self._slipstream.gradients(zip(found, tf.nest.flatten(params), strict=True))
        ]

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies gradients that are reduced; of passes that are accumulated the last one does, others count only."""
        mine: Any = super()
        state = self._slipstream
        pairs = list(grads_and_vars)
        if state.accumulation is None or state.above:
            return mine.apply_gradients(pairs, *args, **kwargs)
        return state.accumulation.apply(lambda: mine.apply_gradients(pairs, *args, **kwargs), self)

    def register_local_var(self, var: Any) -> None:
        """Has the gradient of this variable stay on this rank."""
        self._slipstream.reduce.local.add(var.ref())


def is_distributed(optimizer: Any) -> bool:
    """Whether the optimizer, or one in it, reduces gradients."""
    return isinstance(optimizer, _Distributed)


def _class_around(kind: Any, make: Callable[[], _State]) -> Any:
    # The names are the user's class's, so that a model that is saved can be loaded without slipstream.
    names = {"__module__": kind.__module__, "__doc__": kind.__doc__, "_slipstream_made": staticmethod(make)}
    return type(kind)(kind.__name__, (_Distributed, kind), names)


def _made_around(init: Any) -> Any:
    """A LossScaleOptimizer's ``__init__``, such that one around a `DistributedOptimizer` reduces in its place.

    Keras itself puts one around the optimizer of a model that computes in float16.
    """

    @functools.wraps(init)
    def call(self: Any, inner_optimizer: Any, *args: Any, **kwargs: Any) -> None:
        init(self, inner_optimizer, *args, **kwargs)
        if is_distributed(inner_optimizer) and not is_distributed(self):
            inner = inner_optimizer._slipstream
            around = _class_around(type(self), type(inner_optimizer)._slipstream_made)
            object.__setattr__(self, "__class__", around)
            self.__dict__["_slipstream_state"] = _State(inner.reduce, inner.accumulation)
            inner.above = True

    return call


# For optimizers of each kind it has a class below it, and makes an instance of that. To make one here, to see of which,
# would start TensorFlow: programs may still have to set its threads.
for _kind in tf_keras.mixed_precision.LossScaleOptimizer.__subclasses__():
    _kind.__init__ = _made_around(_kind.__init__)


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
    """Wraps an optimizer of legacy Keras so that it reduces the gradients over the ranks when it computes them.

    Returns an instance of a new subclass of the optimizer's class, which shares its state. It works eagerly, in
    tf.function and ``model.fit``, and with mixed precision. Gradients of a tape of your own are not reduced: use
    `slipstream.tensorflow.DistributedGradientTape` for them.

    name, device_dense, device_sparse: accepted, and change nothing
    compression: what travels, see `Compression`; sums are formed in float32
    sparse_as_dense: tf.IndexedSlices travel dense, and are dense afterwards; else their rows are gathered
    gradient_predivide_factor: with Average, gradients are divided by it before the sum, and by size/it after
    op: Average, Sum, Min, Max, Product or Adasum of the gradients
    backward_passes_per_step: the gradients of so many batches are added up before they travel, and variables change
    average_aggregated_gradients: of accumulated batches the mean is applied, not the sum
    groups: number of groups, or lists of variables, whose gradients travel together; num_groups is its old name
    process_set: the ranks to reduce over; on others the optimizer works alone
    scale_local_gradients: gradients of variables that ``register_local_var`` names are divided by the number of ranks

    All ranks must have gradients for the same variables: Mismatch otherwise, on all of them. Raises TypeError for what
    is no optimizer of legacy Keras, ValueError for one that is wrapped already and for arguments that do not fit.

    >>> optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.1))
    """
    if not isinstance(optimizer, _KINDS):
        raise TypeError(
            f"this DistributedOptimizer takes an optimizer of tf_keras, not {type(optimizer).__name__}"
        )
    if is_distributed(optimizer) or is_distributed(getattr(optimizer, "inner_optimizer", None)):
        raise ValueError("this optimizer is wrapped already: its gradients would be reduced twice")
    if backward_passes_per_step < 1:
        raise ValueError("backward_passes_per_step must be at least 1")
    reduce = ReduceGradients(
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
    )

    def make() -> _State:
        passes = backward_passes_per_step
        accumulation = (
            Accumulation(passes, average_aggregated_gradients, sparse_as_dense) if passes > 1 else None
        )
        return _State(_Reduce(reduce, scale_local_gradients), accumulation)

    wrapped = object.__new__(_class_around(type(optimizer), make))
    object.__setattr__(wrapped, "__dict__", optimizer.__dict__)
    wrapped.__dict__["_slipstream_state"] = make()
    return wrapped


def PartialDistributedOptimizer(
    optimizer: Any, *args: Any, local_layers: Any = None, scale_local_gradients: bool = True, **kwargs: Any
) -> Any:
    """`DistributedOptimizer`, but gradients of ``local_layers`` (a layer, or some) stay on each rank.

    The layers must be built. Raises ValueError for a layer that is none of legacy Keras's.

    >>> layer = tf_keras.layers.Dense(1)
    >>> optimizer = hvd.PartialDistributedOptimizer(tf_keras.optimizers.SGD(0.1), local_layers=[layer])
    """
    layers = [] if local_layers is None else local_layers
    layers = list(layers) if isinstance(layers, list | tuple | set) else [layers]
    if not all(isinstance(one, tf_keras.layers.Layer) for one in layers):
        raise ValueError("All local layers must be of tf_keras.layers.Layer type.")
    kwargs["scale_local_gradients"] = scale_local_gradients
    wrapped = DistributedOptimizer(optimizer, *args, **kwargs)
    for layer in layers:
        for variable in layer.trainable_weights:
            wrapped.register_local_var(variable)
    return wrapped
