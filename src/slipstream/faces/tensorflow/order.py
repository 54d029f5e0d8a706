"""The order of operations in functions: that of the program, on all ranks.

TensorFlow orders what is stateful and takes no resource. It leaves a gap: a condition, a loop or a call of a function
that takes a variable is not ordered with operations outside of it. So all that have operations of slipstream within are
put in one order with these, once the graph of a function is complete. In a backward function TensorFlow orders nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from slipstream.faces.tensorflow import gates
from slipstream.faces.tensorflow.operations import apply_operation

__all__ = ["CALL", "after_latest", "behind_latest", "count_runs"]

CALL = "slipstream_call"
"""What the nodes are called that run Python."""

_SPANS = (
    "_slipstream_spans"  # of a graph: the nodes of its operations, by their numbers, and the last one of each
)
_ORDERED = "_slipstream_ordered"  # of a graph
_has_operations: dict[
    str, bool
] = {}  # by the names of functions; an operation in a graph never loses its function
_installed = False
_counts_runs = False


def count_runs() -> None:
    """Has each function with operations whose graph is completed from now on count its runs (native/tensorflow)."""
    global _counts_runs
    _counts_runs = True


@contextlib.contextmanager
def after_latest(graph: Any) -> Iterator[Callable[[Any], None]]:
    """Within it nodes of a function run after the latest operation; takes the node after which the next one may run.

    Compute that was added to the function since a SlipstreamStart waits for that (`gates`).
    """
    if not _is_of_function(graph):
        yield lambda node: None
        return
    _install()
    spans = getattr(graph, _SPANS, [])
    if spans and spans[-1][2].type == "SlipstreamStart" and gates.are_needed():
        gates.hold_back_later(graph, spans[-1][2])
    begin = len(graph.get_operations())
    with behind_latest(graph):
        yield lambda node: setattr(graph, _SPANS, [*spans, (begin, len(graph.get_operations()), node)])


def behind_latest(graph: Any) -> Any:
    """The same for nodes that belong to an operation which is added after them."""
    spans = getattr(graph, _SPANS, []) if _is_of_function(graph) else []
    return graph.control_dependencies([spans[-1][2]] if spans else [])


def _is_of_function(graph: Any) -> bool:
    return bool(graph.building_function) and graph._get_control_flow_context() is None


def _install() -> None:
    """Has `_complete` called where TensorFlow has built a function, and a backward function."""
    global _installed
    if _installed:
        return
    _installed = True
    from tensorflow.python.framework.auto_control_deps import AutomaticControlDependencies as Dependencies
    from tensorflow.python.ops import gradients_util

    leave, gradients = Dependencies.__exit__, gradients_util._GradientsHelper

    def complete_and_leave(self: Any, kind: Any, value: Any, traceback: Any) -> Any:
        if kind is None:
            _complete(tf.compat.v1.get_default_graph())
        return leave(self, kind, value, traceback)

    def gradients_in_order(*given: Any, **named: Any) -> Any:
        found = gradients(*given, **named)
        _complete(tf.compat.v1.get_default_graph())
        return found

    Dependencies.__exit__ = complete_and_leave
    gradients_util._GradientsHelper = gradients_in_order


@dataclass
class _Ordered:
    """What a graph has in order so far."""

    nodes: int = 0
    latest: Any = None
    counted: bool = False


def _complete(graph: Any) -> None:
    """Puts in order what the graph has got since it was last called."""
    from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph

    if tf.executing_eagerly() or not _is_of_function(graph):
        return
    ordered = getattr(graph, _ORDERED, None) or _Ordered()
    setattr(graph, _ORDERED, ordered)
    _put_in_order(graph, ordered)
    if (
        ordered.latest is None
        or ordered.counted
        or not _counts_runs
        or isinstance(graph, ControlFlowFuncGraph)
    ):
        return
    ordered.counted = True
    with graph.control_dependencies(None), tf.device("CPU:0"):
        apply_operation()("SlipstreamBegin", name=None)


def _put_in_order(graph: Any, ordered: _Ordered) -> None:
    operations = graph.get_operations()
    spans = [([*operations[begin:end]], last) for begin, end, last in getattr(graph, _SPANS, [])]
    first_of = {nodes[0]: (nodes, last) for nodes, last in spans}
    for one in operations[ordered.nodes :]:
        nodes, last = first_of.get(one) or ([one], one if _calls_operations(one) else None)
        if last is None:
            continue
        if ordered.latest is not None:
            for node in nodes:
                node._add_control_input(ordered.latest)
        ordered.latest = last
    ordered.nodes = len(operations)


def _calls_operations(node: Any) -> bool:
    return any(_function_has(name) for name in _functions_of(node.node_def))


def _functions_of(definition: Any) -> list[str]:
    attributes = definition.attr.values()
    return [
        function.name
        for one in attributes
        for function in ([one.func] if one.HasField("func") else one.list.func)
        if function.name
    ]


def _function_has(name: str) -> bool:
    from tensorflow.python.eager import context

    if name not in _has_operations:
        _has_operations[name] = False  # while it looks: a function may call itself
        found = context.context().get_function_def(name).node_def
        _has_operations[name] = any(
            one.op.startswith("Slipstream") or CALL in one.name or any(map(_function_has, _functions_of(one)))
            for one in found
        )
    return _has_operations[name]
