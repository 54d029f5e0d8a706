"""Who am I, as tensors that are computed whenever a graph runs; and objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from slipstream.faces.horovod import job, objects, process_sets
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.tensorflow.bridge import run

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_object_fn",
    "check_num_rank_power_of_2",
    "gpu_available",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]


def _number(what: str, ask: Callable[[], int]) -> Any:
    """An int32 of no dimension, asked for when it is needed: elastic training may change it."""
    outputs = [(tf.int32, tf.TensorShape([]))]
    return run(lambda: [np.array(ask(), np.int32)], [], outputs, what=what)[0]


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """The number of ranks of a process set, as a tensor; ValueError if there is no such set.

    >>> hvd.size_op().numpy()
    2
    """
    return _number("size_op", lambda: len(_ranks(process_set_id)))


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this rank is in the process set, else 0, as a tensor; ValueError if there is no such set.

    >>> hvd.process_set_included_op().numpy()
    1
    """
    return _number("process_set_included_op", lambda: int(job.rank() in _ranks(process_set_id)))


def _ranks(number: int) -> list[int]:
    found = process_sets.registered().get(number)
    if found is None:
        raise ValueError(f"there is no process set of the number {number}")
    return found


def rank_op(name: str | None = None) -> Any:
    """The number of this process in the job, as a tensor.

    >>> hvd.rank_op().numpy()  # on rank 0
    0
    """
    return _number("rank_op", job.rank)


def local_rank_op(name: str | None = None) -> Any:
    """The number of this process on its host, as a tensor.

    >>> hvd.local_rank_op().numpy()  # on rank 0
    0
    """
    return _number("local_rank_op", job.local_rank)


def local_size_op(name: str | None = None) -> Any:
    """The number of processes of the job on this host, as a tensor.

    >>> hvd.local_size_op().numpy()
    2
    """
    return _number("local_size_op", job.local_size)


def join() -> Any:
    """For a rank that has no more batches: takes part in what the others do until all ranks have called it.

    Returns the rank that called it last, as a tensor of int32; see `slipstream.torch.join`.

    >>> int(hvd.join()) in range(hvd.size())
    True
    """
    return _number("join", job.join)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the object that ``root_rank`` gave, on every rank; it must be one that pickle takes.

    ``session`` is accepted and changes nothing. Raises as `slipstream.torch.broadcast_object` does.

    >>> hvd.broadcast_object({"epoch": hvd.rank()}, root_rank=1)
    {'epoch': 1}
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function of an object, which does what `broadcast_object` does with these arguments.

    >>> hvd.broadcast_object_fn(root_rank=1)(hvd.rank())
    1
    """
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns the objects of all ranks, in rank order; ``session`` is accepted and changes nothing.

    >>> hvd.allgather_object(hvd.rank())
    [0, 1]
    """
    return objects.allgather_object(obj, name, process_set)


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Whether TensorFlow sees a GPU here.

    >>> hvd.gpu_available()
    False
    """
    return bool(tf.config.list_physical_devices("GPU"))


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether a number of ranks is 1, 2, 4, 8 and so on. Adasum takes any number here.

    >>> hvd.check_num_rank_power_of_2(4)
    True
    """
    return num_rank > 0 and num_rank.bit_count() == 1
