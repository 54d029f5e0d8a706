"""`DistributedGradientTape`: a tape whose gradients are reduced over the job."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from slipstream.faces.arrays.compression import AnyCompression, Compression
from slipstream.faces.arrays.keras_kinds import is_legacy
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Average
from slipstream.faces.tensorflow.gradients import ReduceGradients

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape", "local_ids", "scaled"]


class _Distributed:
    """Comes before the user's class in the classes made by `DistributedGradientTape`."""

    _slipstream: ReduceGradients
    _slipstream_local: set[int]
    _slipstream_scale: bool

    def register_local_source(self, source: Any) -> None:
        """Has the gradient of this variable stay on this rank."""
        self._slipstream_local |= local_ids([source])

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        **kwargs: Any,
    ) -> Any:
        """The gradients of ``target``, as `tf.GradientTape.gradient` says, reduced over all ranks; each calls it."""
        grads = super().gradient(target, sources, output_gradients, **kwargs)  # type: ignore[misc]
        flat = tf.nest.flatten(sources, expand_composites=False)
        found = tf.nest.flatten(grads, expand_composites=False)
        local = [bool(local_ids([one]) & self._slipstream_local) for one in flat]
        shared = [i for i, is_local in enumerate(local) if not is_local]
        reduced = self._slipstream([found[i] for i in shared], [flat[i] for i in shared])
        for i, one in zip(shared, reduced, strict=True):
            found[i] = one
        if self._slipstream_scale:
            size = self._slipstream.process_set.size() or 1
            found = [
                scaled(one, size) if is_local else one for one, is_local in zip(found, local, strict=True)
            ]
        if not isinstance(sources, list | tuple | dict):
            return found[0]
        return tf.nest.pack_sequence_as(sources, found)

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[Any], list[Any]]:
        """Pairs of source and gradient: those of local sources, and those that are reduced."""
        pairs = list(zip(sources, self.gradient(target, sources, output_gradients), strict=True))
        local = [bool(local_ids([one]) & self._slipstream_local) for one, _ in pairs]
        return (
            [one for one, is_local in zip(pairs, local, strict=True) if is_local],
            [one for one, is_local in zip(pairs, local, strict=True) if not is_local],
        )


def local_ids(sources: Iterable[Any]) -> set[int]:
    """What variables are known by: a variable of Keras is the one of TensorFlow that it holds."""
    return {id(getattr(one, "_value", one)) for one in sources}


def scaled(grad: Any, size: int) -> Any:
    """A gradient that stays on this rank, divided as those are that are averaged."""
    if grad is None:
        return None
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(grad.values / float(size), grad.indices, grad.dense_shape)
    return grad / float(size)


@functools.cache
def _class_of(kind: Any) -> Any:
    return type(kind.__name__, (_Distributed, kind), {})


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps a tape so that ``gradient`` returns gradients that are reduced over the ranks, in one exchange.

    Returns an instance of a new subclass of the tape's class, which shares its state, with ``register_local_source``
    added. Works eagerly and in tf.function.

    device_dense, device_sparse: accepted, and change nothing
    compression: what travels, see `Compression`; sums are formed in float32
    sparse_as_dense: tf.IndexedSlices travel dense, and are dense afterwards; else their rows are gathered
    op: Average, Sum, Min, Max, Product or Adasum of the gradients
    gradient_predivide_factor: with Average, gradients are divided by it before the sum, and by size/it after
    groups: number of groups, or lists of variables, whose gradients travel together; num_groups is its old name
    process_set: the ranks to reduce over; on others the tape works alone
    scale_local_gradients: the gradients of local sources are divided by the number of ranks

    All ranks must have gradients for the same sources: Mismatch otherwise, on all of them. Raises ValueError for
    arguments that do not fit.

    >>> x = tf.Variable(1.0)
    >>> with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
    ...     y = x * (hvd.rank() + 1.0)
    >>> tape.gradient(y, x).numpy()
    1.5
    """
    wrapped = object.__new__(_class_of(gradtape.__class__))
    wrapped.__dict__ = gradtape.__dict__
    wrapped._slipstream = ReduceGradients(
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
    )
    wrapped._slipstream_local = set()
    wrapped._slipstream_scale = scale_local_gradients
    return wrapped


def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """`DistributedGradientTape` whose gradients of ``local_layers`` (a Keras layer, or some) stay on each rank.

    Raises ValueError for a layer that is none of Keras's.

    >>> layer = tf.keras.layers.Dense(1)
    >>> tape = hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[layer])
    """
    layers = _as_layers(local_layers)
    tape = DistributedGradientTape(
        gradtape,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for layer in layers:
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape


def _as_layers(layers: Any) -> list[Any]:
    found = [] if layers is None else list(layers) if isinstance(layers, list | tuple | set) else [layers]
    if not all(is_legacy(one) or isinstance(one, tf.keras.layers.Layer) for one in found):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return found
