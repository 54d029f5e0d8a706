"""`tf.distribute` on slipstream: one replica a rank, on its CPU, with all variables mirrored.

It is TensorFlow's MirroredStrategy of one device, whose reductions are slipstream's, and which tells TensorFlow that
there are as many replicas as ranks: Keras divides losses by that number, and shares of a dataset are cut by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import cross_device_ops, input_util
from tensorflow.python.distribute.distribute_utils import regroup
from tensorflow.python.distribute.mirrored_strategy import MirroredExtended
from tensorflow.python.distribute.values import DistributedVariable

from slipstream.faces.horovod.job import rank, size
from slipstream.faces.horovod.reduce_ops import Average, Sum
from slipstream.faces.tensorflow.movement import allgather, broadcast_variables
from slipstream.faces.tensorflow.reductions import allreduce, grouped_allreduce

__all__ = ["Strategy"]


def _own(value: Any) -> Any:
    """The tensor of this rank, which has one replica."""
    return tf.convert_to_tensor(
        value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value
    )


def _op(reduce_op: Any) -> int:
    return Average if reduce_op == tf.distribute.ReduceOp.MEAN else Sum


def _gathered(tensor: Any, axis: Any) -> Any:
    """The tensors of all ranks, which may differ in size along this axis alone; it is in front while they travel."""
    dims, known = tensor.shape.rank, tf.get_static_value(axis)
    if known == 0:
        return allgather(tensor)
    if dims is None or known is None:
        raise ValueError(
            "gather along another axis than 0 needs a known axis, and a known number of dimensions"
        )
    if not -dims <= known < dims:
        raise ValueError(f"gather: a tensor of {dims} dimensions has no axis {known}")
    at = int(known) % dims
    before, after = range(at), range(at + 1, dims)
    gathered = allgather(tf.transpose(tensor, [at, *before, *after]))
    return tf.transpose(gathered, [*(one + 1 for one in before), 0, *after])


def _placed(tensor: Any, destinations: Any) -> Any:
    return cross_device_ops.simple_broadcast(tensor, destinations, always_mirrored=True)


class _Reductions(tf.distribute.CrossDeviceOps):  # type: ignore[misc]
    """What TensorFlow asks for whenever values of all replicas become one.

    Not the methods named "implementation": the base does not call these for one device.
    """

    def reduce(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any = None) -> Any:
        """The sum or the average of one value."""
        return _placed(allreduce(_own(per_replica_value), op=_op(reduce_op)), destinations)

    def batch_reduce(
        self, reduce_op: Any, value_destination_pairs: Sequence[Any], options: Any = None
    ) -> Any:
        """The same of many, which travel together."""
        found = grouped_allreduce([_own(value) for value, _ in value_destination_pairs], op=_op(reduce_op))
        return [_placed(one, place) for one, (_, place) in zip(found, value_destination_pairs, strict=True)]

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
        """Within the rank: TensorFlow calls it for values that all ranks have."""
        return _placed(tensor, destinations)

    def _gather(self, per_replica_value: Any, destinations: Any, axis: Any, options: Any = None) -> Any:
        return _placed(_gathered(_own(per_replica_value), axis), destinations)


class _Extended(MirroredExtended):  # type: ignore[misc]
    def __init__(self, strategy: Any) -> None:
        super().__init__(strategy, devices=["/cpu:0"], cross_device_ops=_Reductions())

    @property
    def _num_replicas_in_sync(self) -> int:
        return size()

    def _get_cross_device_ops(self, value: Any) -> Any:
        """TensorFlow keeps int32 on the host, and so within the rank."""
        return self._cross_device_ops

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        """TensorFlow takes the only replica's value for equal on all, and reduces what is on a CPU within the rank.

        That is right for variables: those of metrics are of a rank's own rows.
        """
        if isinstance(value, DistributedVariable):
            return super()._reduce_to(reduce_op, value, destinations, options)
        return tf.nest.map_structure(
            lambda one: self._cross_device_ops.reduce(reduce_op, one, destinations), value
        )

    def _gather_to_implementation(self, value: Any, destinations: Any, axis: Any, options: Any) -> Any:
        """TensorFlow does not gather the only replica's value."""
        return self._cross_device_ops._gather(value, destinations, axis)

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return int(rank()) + replica_id

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group - int(rank())

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        return regroup([value_fn(tf.distribute.experimental.ValueContext(rank(), size()))], always_wrap=True)

    def _make_input_context(self) -> Any:
        return tf.distribute.InputContext(size(), rank(), size())

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        return input_util.get_distributed_dataset(
            dataset,
            self._input_workers_with_options(options),
            self._container_strategy(),
            num_replicas_in_sync=size(),
            input_context=self._make_input_context(),
            options=options,
        )

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        return input_util.get_distributed_datasets_from_function(
            dataset_fn,
            self._input_workers_with_options(options),
            [self._make_input_context()],
            self._container_strategy(),
            options,
        )

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        """All ranks begin with the values of rank 0."""
        variable = super()._create_variable(next_creator, **kwargs)
        if size() > 1:
            if not tf.executing_eagerly():
                raise NotImplementedError(
                    "a variable is made within a tf.function in the scope of slipstream's strategy: make it before"
                )
            broadcast_variables(list(variable.values), root_rank=0)
        return variable


class Strategy(tf.distribute.Strategy):  # type: ignore[misc]
    """Trains on all ranks what is made in its scope, such as a Keras model by `Model.fit`; `hvd.init` comes before.

    As with MultiWorkerMirroredStrategy a batch is the batch of all ranks together, and a dataset is shared out: each
    rank's program gives the whole of it. All ranks make the same variables in the same order, begin with the values of
    rank 0, and call `fit` alike. Metrics, and what `predict` returns, are of a rank's own rows.

    >>> with slipstream.tensorflow.distribute.Strategy().scope():
    ...     model = make_model()
    ...     model.compile("adam", "mse")
    """

    _collective_key_base = 0  # MirroredExtended reads it

    def __init__(self) -> None:
        size()  # an error before hvd.init
        super().__init__(_Extended(self))
