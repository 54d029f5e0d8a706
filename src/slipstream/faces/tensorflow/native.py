"""Operations of functions as two native ones: SlipstreamStart begins, SlipstreamWait gives the results.

They need no Python, and keep none of TensorFlow's threads busy (native/tensorflow). What belongs together on the ranks
their line says (`lines`). The operations without a name of all functions are one line, as they run in the order of the
program (`order`). Each name is a line of its own. Sessions of TensorFlow 1 have none: nothing orders what they run, and
nothing tells when a run has failed (`failed_calls`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from slipstream.base.dtypes import WireType
from slipstream.comm.membership import job as jobs
from slipstream.faces.arrays.movement import number_of_root
from slipstream.faces.horovod.job import prepare_by
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.horovod.reduce_ops import Adasum, engine_op
from slipstream.faces.tensorflow import failed_calls
from slipstream.faces.tensorflow.lines import line_of
from slipstream.faces.tensorflow.naming import Place, in_session
from slipstream.faces.tensorflow.operations import apply_operation
from slipstream.faces.tensorflow.order import after_latest

__all__ = ["Call", "all_reduce_call", "broadcast_call", "started"]

_ALL_REDUCE, _BROADCAST = 1, 4  # as slipstream.h has them
_DTYPES = frozenset(
    [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
    + ["float64", "float32", "float16", "bfloat16", "bool", "complex64", "complex128"]
)


@dataclass(frozen=True)
class Call:
    """All of an operation but its tensors. ``root``: a rank of the set's group."""

    collective: int
    process_set: ProcessSet
    name: str | None
    op: int = 0
    root: int = 0
    wire: int = 0
    prescale: float = 1.0
    postscale: float = 1.0


def all_reduce_call(
    op: int, prescale: float, postscale: float, process_set: ProcessSet, wire: WireType, name: str | None
) -> Call | None:
    """An all-reduce of each tensor by Horovod's ``op``; None for Adasum, which the engine has not."""
    if op == Adasum:
        return None
    return Call(
        _ALL_REDUCE, process_set, name, engine_op(op), 0, int(wire), float(prescale), float(postscale)
    )


def broadcast_call(root_rank: int, process_set: ProcessSet, name: str | None) -> Call:
    """A broadcast of each tensor from ``root_rank``, its number in the job."""
    return Call(_BROADCAST, process_set, name, root=number_of_root(root_rank, process_set))


def started(call: Call | None, inputs: Sequence[Any]) -> list[Any] | None:
    """Adds the operation to the graph; its results. None where it has to go another way."""
    if call is None or not inputs or not all(one.dtype.name in _DTYPES for one in inputs):
        return None
    if jobs.current().settings.tensorflow_graphs != "native":
        return None
    graph = tf.compat.v1.get_default_graph()
    if not graph.building_function or in_session() or not failed_calls.are_seen():
        return None
    if graph._get_control_flow_context() is not None:
        return None  # of TensorFlow 1: iterations of a loop may overlap
    apply = apply_operation()
    if apply is None:
        return None
    return _added(apply, call, inputs, graph)


def _added(apply: Any, call: Call, inputs: Sequence[Any], graph: Any) -> list[Any]:
    kind = "allreduce" if call.collective == _ALL_REDUCE else "broadcast"
    given, place = ("", call.name) if isinstance(call.name, Place) else (call.name or "", "")
    name = f"{kind}.{given}" if given else "without a name"
    line = line_of(call.process_set, name)
    scales = struct.unpack("<qq", struct.pack("<dd", call.prescale, call.postscale))
    fields = [call.collective, call.op, call.root, call.wire, *scales]
    with after_latest(graph) as latest:
        ticket, results = apply(
            "SlipstreamStart",
            name=None,
            inputs=list(inputs),
            call=fields,
            line=line,
            what=given,
            place=place,
        )
        latest(ticket.op)
    return list(apply("SlipstreamWait", name=None, ticket=ticket, results=list(results)))


prepare_by(apply_operation)  # a model that is loaded may have them
