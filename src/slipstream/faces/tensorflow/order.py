"""The order of operations in functions: that of the program, on all ranks.

TensorFlow orders nodes with a state that take no variable. It does not order a condition, a loop or a call of a
function that takes a variable with them. So slipstream puts its operations, and whatever calls a function that has
some, in one order. It does that when a function is complete, and when gradients were added to it: a backward function
has no order by TensorFlow at all.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.auto_control_deps import AutomaticControlDependencies
from tensorflow.python.ops import gradients_util

from slipstream.faces.tensorflow import gates

__all__ = ["CALL", "STEP", "Within", "after_latest", "behind_latest", "within_function"]

CALL = "slipstream_call"
"""What the nodes are called that run Python."""

STEP = "_slipstream_step"
"""The attribute of a node that reduces the gradients of a step: the ranks of its process set."""

_KEPT = 4096  # functions of which is known what they have; TensorFlow keeps all of their nodes
_ORDERED = "_slipstream_ordered"  # of a graph
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")  # nodes that run the function that they name


@dataclass
class _Ordered:
    """What is known of a graph's order."""

    # Of each operation: the numbers of its nodes, from and to, and the node after which the next operation may run.
    spans: list[tuple[int, int, Any]] = field(default_factory=list)
    nodes: int = 0  # how many are in order
    latest: Any = None  # the last one of these that has, or calls, an operation


@dataclass(frozen=True)
class Within:
    """What a function has, with those that it calls: operations, and the lines of native ones.

    ``certain``: the lines of those that run whenever the function does, in no condition and in no loop. ``steps``: by
    the ranks of a process set, how often it reduces gradients of that by Python; None where a condition or a loop does.
    """

    operations: bool = False
    lines: frozenset[str] = frozenset()
    certain: frozenset[str] = frozenset()
    steps: Mapping[str, int | None] = field(default_factory=dict)


@contextlib.contextmanager
def after_latest(graph: Any) -> Iterator[Callable[[Any], None]]:
    """Within it nodes of a function run after the latest operation; takes the node after which the next one may run.

    Compute that was added to the function since a SlipstreamStart waits for that (`gates`).
    """
    if not _is_of_function(graph):
        yield lambda node: None
        return
    ordered = _ordered_in(graph)
    if ordered.spans and ordered.spans[-1][2].type == "SlipstreamStart" and gates.are_needed():
        gates.hold_back_later(graph, ordered.spans[-1][2])
    with behind_latest(graph):
        begin = len(graph.get_operations())
        yield lambda node: ordered.spans.append((begin, len(graph.get_operations()), node))


def behind_latest(graph: Any) -> Any:
    """The same for nodes that belong to an operation which is added after them."""
    if not _is_of_function(graph):
        return contextlib.nullcontext()
    latest = _put_in_order(graph).latest
    return graph.control_dependencies([latest] if latest is not None else [])


def _is_of_function(graph: Any) -> bool:
    return bool(graph.building_function) and graph._get_control_flow_context() is None


def _ordered_in(graph: Any) -> _Ordered:
    ordered: _Ordered | None = getattr(graph, _ORDERED, None)
    if ordered is None:
        ordered = _Ordered()
        setattr(graph, _ORDERED, ordered)
    return ordered


def _put_in_order(graph: Any) -> _Ordered:
    """Puts in order what the graph has got since the last time."""
    ordered = _ordered_in(graph)
    operations = graph.get_operations()
    spans = {begin: (end, last) for begin, end, last in ordered.spans}  # which are behind the latest already
    while (begin := ordered.nodes) < len(operations):
        if begin in spans:
            ordered.nodes, ordered.latest = spans[begin]
            continue
        ordered.nodes += 1
        one = operations[begin]
        if _has_operations(one):
            if ordered.latest is not None:
                one._add_control_input(ordered.latest)
            ordered.latest = one
    return ordered


def _complete(graph: Any) -> None:
    """Puts all of a function in order."""
    if not tf.executing_eagerly() and _is_of_function(graph):
        _put_in_order(graph)


def _has_operations(node: Any) -> bool:
    """Whether a node is one, or calls a function that has some."""
    if node.type == "SlipstreamStart":
        return True
    if not _takes_functions(node.type):
        return False
    return any(within_function(name).operations for name in _called_by(node.node_def))


@functools.cache
def _takes_functions(kind: str) -> bool:
    """Whether nodes of this type may call functions; the definition of a node itself takes time to make."""
    definition = op_def_registry.get(kind)
    return definition is None or any(one.type in ("func", "list(func)") for one in definition.attr)


def _called_by(definition: Any) -> list[str]:
    return [
        function.name
        for one in definition.attr.values()
        for function in ([one.func] if one.HasField("func") else one.list.func)
        if function.name
    ]


@functools.lru_cache(maxsize=_KEPT)
def within_function(name: str) -> Within:
    """What the function of this name has."""
    nodes = context.context().get_function_def(name).node_def
    operations = any(one.op.startswith("Slipstream") or CALL in one.name for one in nodes)
    lines = frozenset(one.attr["line"].s.decode() for one in nodes if one.op == "SlipstreamStart")
    steps = Counter(one.attr[STEP].s.decode() for one in nodes if STEP in one.attr)
    called = [(called, one.op in _CALLS) for one in nodes for called in _called_by(one) if called != name]
    found = [(Within(operations, lines, lines, steps), True)]
    found += [(within_function(one), always) for one, always in called]
    return Within(
        any(one.operations for one, _ in found),
        frozenset().union(*(one.lines for one, _ in found)),
        frozenset().union(*(one.certain for one, always in found if always)),
        _steps_of(found),
    )


def _steps_of(found: Sequence[tuple[Within, bool]]) -> dict[str, int | None]:
    """Of a function that calls others: what each of them has, and whether it runs whenever the function does."""
    steps: dict[str, int | None] = {}
    for one, always in found:
        for ranks, times in one.steps.items():
            before = steps.get(ranks, 0)
            steps[ranks] = before + times if always and times is not None and before is not None else None
    return steps


def _install() -> None:
    """Has `_complete` called where TensorFlow has built a function, and a backward function.

    Before any function is traced: Python's `with` looks up how it ends when it begins.
    """
    leave, gradients = AutomaticControlDependencies.__exit__, gradients_util._GradientsHelper

    def complete_and_leave(self: Any, kind: Any, value: Any, traceback: Any) -> Any:
        if kind is None:
            _complete(tf.compat.v1.get_default_graph())
        return leave(self, kind, value, traceback)

    def gradients_in_order(*given: Any, **named: Any) -> Any:
        found = gradients(*given, **named)
        _complete(tf.compat.v1.get_default_graph())
        return found

    AutomaticControlDependencies.__exit__ = complete_and_leave
    gradients_util._GradientsHelper = gradients_in_order


_install()
