"""The operations of `horovod.tensorflow` that reduce: eager, in graphs, and with gradients.

They start when all ranks of the set have called them. Ranks may call those with a name in whatever order; the n-th call
without a name on one rank belongs to the n-th on the others, but those in sessions have names (`naming`). Where ranks
differ in shape, dtype, operation or factors, every rank raises Mismatch, and the job goes on. ``device_dense``,
``device_sparse`` and ``ignore_name_scope`` are accepted and change nothing: tensors on other devices are copied to the
host and back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from slipstream.base.arguments import as_number
from slipstream.base.dtypes import WireType
from slipstream.base.errors import SlipstreamError
from slipstream.comm.collectives.interruption import whole
from slipstream.comm.collectives.wires import wire_of_job
from slipstream.comm.membership.group import Group, world
from slipstream.faces.arrays import starting
from slipstream.faces.arrays.compression import AnyCompression, Compression, wire_for
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Adasum, Average, Sum, choose_op
from slipstream.faces.tensorflow.bridge import (
    as_tensor,
    is_eager,
    is_plain,
    may_record,
    run,
    to_array,
    to_tensor,
)
from slipstream.faces.tensorflow.failures import as_argument_error, as_framework_error, group_of
from slipstream.faces.tensorflow.movement import CHECKS, grouped_allgather, with_gradient
from slipstream.faces.tensorflow.naming import name_in_graph
from slipstream.faces.tensorflow.native import all_reduce_call

__all__ = ["allreduce", "grouped_allreduce", "grouped_reducescatter", "reducescatter"]

Factors = tuple[float, float]


whole_call = whole(
    lambda *_, **__: world(), checks=CHECKS | {"prescale_factor": as_number, "postscale_factor": as_number}
)


try:
    from tensorflow.python.saved_model.save_context import in_save_context as _is_saved
except ImportError:  # of another release

    def _is_saved() -> bool:
        """Whether this is traced for a model that is saved."""
        return False


_NO_GRADIENT = "gradients flow through Average and Sum only, not through Min, Max, Product or Adasum"


def _flows(op: int) -> bool:
    """Whether a reduction by ``op`` has a gradient."""
    return op in (Average, Sum)


def _without_gradient(like: Sequence[Any]) -> list[Any]:
    """Raises; in a model that is saved only when it runs, as TensorFlow traces gradients there that nobody may want."""
    if not _is_saved():
        raise NotImplementedError(_NO_GRADIENT)
    with tf.control_dependencies([tf.raw_ops.Assert(condition=False, data=[_NO_GRADIENT], summarize=1)]):
        return [tf.identity(one) for one in like]


@whole_call
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks; returns a new one of its shape and dtype.

    ``tensor``: a tf.Tensor, tf.Variable, or what `tf.convert_to_tensor` takes, of the same shape and dtype on all
    ranks; of tf.IndexedSlices all values and indices are gathered. ``op``: Average (the default; integers truncate
    toward zero), Sum, Min, Max, Product, or Adasum for floating-point tensors; ``average`` is its deprecated
    forerunner. ``compression``: what travels, see `Compression`, the same on all ranks. ``prescale_factor``,
    ``postscale_factor``: factors of what goes in and of what comes out; integers are truncated after each. ``name``:
    what errors and the timeline call it. ``process_set``: the ranks that take part. Differentiable for Average and Sum.
    Raises TypeError or ValueError for arguments that do not fit; Mismatch, which is a
    tf.errors.FailedPreconditionError too, if the ranks' shapes, dtypes or operations differ; another SlipstreamError,
    which is a tf.errors.UnavailableError, if the operation fails. In a graph they are tf.errors.FailedPreconditionError
    and tf.errors.UnknownError with the same texts.

    >>> hvd.allreduce(tf.constant([1.0, 2.0]) * (hvd.rank() + 1)).numpy()
    array([1.5, 3. ], dtype=float32)
    """
    op = choose_op(op, average)
    if compression is Compression.none and is_plain(tensor):
        group = group_of(process_set)
        factors = prescale_factor, postscale_factor
        return _all_reduce_now(tensor, name, op, factors, process_set, group, wire_of_job(group))
    if isinstance(tensor, tf.IndexedSlices):
        return _sparse([tensor], op, (prescale_factor, postscale_factor), process_set)[0]
    tensor = as_tensor(tensor)
    wire = wire_for(compression, group_of(process_set))
    small, ctx = compression.compress(tensor)
    reduced = _all_reduce(small, name, op, (prescale_factor, postscale_factor), process_set, wire)
    return compression.decompress(reduced, ctx)


def _all_reduce(
    tensor: Any, name: str | None, op: int, factors: Factors, process_set: ProcessSet, wire: WireType
) -> Any:
    if is_eager(tensor) and not may_record():
        return _all_reduce_now(tensor, name, op, factors, process_set, group_of(process_set), wire)
    name = name_in_graph(name, "allreduce", process_set)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduce(x: Any) -> tuple[Any, Callable[[Any], Any]]:
        def gradient(dy: Any) -> Any:
            if not _flows(op):
                return _without_gradient([dy])[0]
            return _all_reduce(dy, None, op, factors, process_set, wire)

        def work(array: Any) -> list[Any]:
            return [starting.all_reduce(array, name, op, *factors, process_set, wire).wait()]

        return run(work, [x], [(x.dtype, x.shape)], native, _called("allreduce", op))[0], gradient

    native = all_reduce_call(op, *factors, process_set, wire, name)
    return reduce(tensor)


def _called(kind: str, op: int) -> str:
    return f"{kind} by Adasum" if op == Adasum else kind


def _all_reduce_now(
    tensor: Any,
    name: str | None,
    op: int,
    factors: Factors,
    process_set: ProcessSet,
    group: Group,
    wire: WireType,
) -> Any:
    """The way of `run`, with nothing on it that takes time. ``group``: the set's."""
    prescale, postscale = factors
    try:
        result = starting.all_reduce_now(
            to_array(tensor), name, op, prescale, postscale, process_set, group, wire
        )
    except SlipstreamError as error:
        raise as_framework_error(error) from None
    except ValueError as error:
        raise as_argument_error(error) from None
    return to_tensor(result, tensor)


@whole_call
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduces several tensors in one operation; returns the list of new ones. Otherwise as `allreduce`.

    >>> [one.numpy() for one in hvd.grouped_allreduce([tf.ones(1), tf.ones(2)], op=hvd.Sum)]
    [array([2.], dtype=float32), array([2., 2.], dtype=float32)]
    """
    op = choose_op(op, average)
    factors = prescale_factor, postscale_factor
    results: list[Any] = [None] * len(tensors)
    sparse = [i for i, one in enumerate(tensors) if isinstance(one, tf.IndexedSlices)]
    dense = [i for i in range(len(tensors)) if i not in sparse]
    if sparse:
        found = _sparse([tensors[i] for i in sparse], op, factors, process_set)
        results = [found[sparse.index(i)] if i in sparse else None for i in range(len(tensors))]
    if dense:
        wire = wire_for(compression, group_of(process_set))
        small = [compression.compress(as_tensor(tensors[i])) for i in dense]
        reduced = _grouped_all_reduce([one for one, _ in small], name, op, factors, process_set, wire)
        for i, (_, ctx), one in zip(dense, small, reduced, strict=True):
            results[i] = compression.decompress(one, ctx)
    return results


def _grouped_all_reduce(
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    factors: Factors,
    process_set: ProcessSet,
    wire: WireType,
) -> list[Any]:
    name = name_in_graph(name, "allreduce", process_set)

    def work(*arrays: Any) -> Any:
        return starting.grouped_all_reduce(arrays, name, op, *factors, process_set, wire).wait()

    def gradient(*dys: Any) -> Any:
        if not _flows(op):
            return _without_gradient(dys)
        return _grouped_all_reduce(dys, None, op, factors, process_set, wire)

    native = all_reduce_call(op, *factors, process_set, wire, name)
    return with_gradient(
        work,
        gradient,
        tensors,
        [(one.dtype, one.shape) for one in tensors],
        native,
        _called("grouped_allreduce", op),
    )


def _sparse(slices: Sequence[Any], op: int, factors: Factors, process_set: ProcessSet) -> list[Any]:
    """Of each tf.IndexedSlices all values and indices; with Average the values are divided by the number of ranks."""
    if op == Adasum:
        raise NotImplementedError(
            "The Adasum reduction does not currently support sparse tensors. As a workaround please pass "
            "sparse_as_dense=True to DistributedOptimizer"
        )
    if op not in (Average, Sum):
        raise NotImplementedError("Only Sum and Average ops are supported with tf.IndexedSlices")
    if factors != (1.0, 1.0):
        raise NotImplementedError("Pre/postscale_factor are not supported with tf.IndexedSlices")
    values = grouped_allgather([one.values for one in slices], process_set=process_set)
    indices = grouped_allgather([one.indices for one in slices], process_set=process_set)
    if op == Average:
        values = [one / tf.cast(process_set.size(), one.dtype) for one in values]
    return [
        tf.IndexedSlices(value, index, dense_shape=one.dense_shape)
        for value, index, one in zip(values, indices, slices, strict=True)
    ]


@whole_call
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: AnyCompression = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces a tensor over all ranks and returns this rank's rows of the result.

    The first ranks get one row more where the rows do not divide evenly. ``op``: Average, Sum, Min, Max or Product.
    Otherwise as `allreduce`.

    >>> hvd.reducescatter(tf.range(4.0), op=hvd.Sum).numpy()  # on rank 0
    array([0., 2.], dtype=float32)
    """
    given = [tensor], device_dense, compression, op, process_set, prescale_factor, postscale_factor, name
    return _reduce_scatter(*given)[0]


@whole_call
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: AnyCompression = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Any]:
    """`reducescatter` of several tensors in one operation; returns the list of this rank's rows.

    >>> [one.numpy() for one in hvd.grouped_reducescatter([tf.ones(2)], op=hvd.Sum)]
    [array([2.], dtype=float32)]
    """
    given = tensors, device_dense, compression, op, process_set, prescale_factor, postscale_factor, name
    return _reduce_scatter(*given) if tensors else []


def _reduce_scatter(
    tensors: Sequence[Any],
    _: str,
    compression: AnyCompression,
    op: int,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
    name: str | None,
) -> list[Any]:
    wire = wire_for(compression, group_of(process_set))
    small = [compression.compress(as_tensor(one)) for one in tensors]
    inputs = [one for one, _ in small]
    factor = prescale * postscale * (process_set.size() or 1 if op == Sum else 1)
    name = name_in_graph(name, "reducescatter", process_set)

    def work(*arrays: Any) -> Any:
        given = name, op, prescale, postscale, process_set, wire
        if len(arrays) == 1:
            return [starting.reduce_scatter(arrays[0], *given).wait()]
        return starting.grouped_reduce_scatter(arrays, *given).wait()

    def gradient(*dys: Any) -> Any:
        if not _flows(op):
            return _without_gradient(inputs)
        return grouped_allgather([dy if factor == 1 else dy * factor for dy in dys], process_set=process_set)

    for one in inputs:
        if one.shape.rank == 0:
            raise ValueError("reducescatter needs a tensor of at least one dimension")
    outputs = [(one.dtype, tf.TensorShape([None]).concatenate(one.shape[1:])) for one in inputs]
    found = with_gradient(work, gradient, inputs, outputs, what="reducescatter")
    return [compression.decompress(one, ctx) for one, (_, ctx) in zip(found, small, strict=True)]
