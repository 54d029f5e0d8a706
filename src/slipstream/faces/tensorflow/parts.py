"""Gradients of a function that are handed over while backward makes the others.

Nodes of `tf.numpy_function` hand them over, in parts, and the exchange sends its buckets as soon as they are full. The
last node waits for the reduced gradients. The others have no state for TensorFlow, as it would run what has a state in
the order of the program: after backward. Each of them gets an output of the one before, which orders them.

The first one runs after what the program did before backward. So a step that fails there, in an assertion, has handed
over nothing, and the ranks are still in step. Where the program does more between backward and the reduction, that
comes first, and the gradients go in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from slipstream.base.errors import SlipstreamError
from slipstream.comm.membership.group import world
from slipstream.faces.arrays.gradients import Exchange, Terms, exchange_of
from slipstream.faces.arrays.operands import Array
from slipstream.faces.horovod.reduce_ops import Adasum
from slipstream.faces.tensorflow import gates
from slipstream.faces.tensorflow.bridge import run
from slipstream.faces.tensorflow.naming import in_session
from slipstream.faces.tensorflow.order import behind_latest

__all__ = ["reduced_in_parts"]

_PART_BYTES = 1 << 20  # at least: each part takes a call of Python


def reduced_in_parts(
    grads: Sequence[Any], names: Sequence[str], terms: Terms, others: Sequence[Any]
) -> list[Any] | None:
    """The reduced gradients, which travel as soon as they are there; None if they have to go in one piece.

    ``others``: tensors that are to be computed while these gradients travel.
    """
    if not _can(grads, terms):
        return None
    graph = tf.compat.v1.get_default_graph()
    nodes = gates.Nodes(graph)
    made = [nodes.made(one.op) for one in grads]
    parts = _parts(grads, made)
    places = [made[part[-1]] for part in parts]
    if places[0] == places[-1] or nodes.ordered(places[-1] + 1, len(nodes)):
        return None
    if not any(nodes.varies(grads[number].op) for number in parts[0]):
        return None  # TensorFlow would hand over the first part once, and take its result for a constant
    step = _Step(tuple((tuple(one.shape), _numpy(one)) for one in grads), names, terms)
    with graph.control_dependencies(nodes.ordered(0, places[0])[-1:]):
        begun = [_handed_over(graph, step, grads, parts[0])]
    for part in parts[1:]:
        begun.append(_handed_over(graph, step, grads, part, begun[-1]))
    if gates.are_needed():
        pairs = zip([one.op for one in begun], places, strict=True)
        gates.Nodes(graph).hold_back([*pairs], places[-1])
    with graph.control_dependencies([one.op for one in others if _is_in(graph, one)]):
        return run(step.end, [begun[-1]], [(one.dtype, one.shape) for one in grads])


def _can(grads: Sequence[Any], terms: Terms) -> bool:
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or in_session() or not graph.building_function:
        return False
    if graph._get_control_flow_context() is not None or terms.op == Adasum:
        return False
    return all(_is_in(graph, one) and one.shape.is_fully_defined() for one in grads)


def _is_in(graph: Any, tensor: Any) -> bool:
    return getattr(tensor, "graph", None) is graph  # an eager one has none


def _parts(grads: Sequence[Any], made: Sequence[int]) -> list[list[int]]:
    """The numbers of gradients that are handed over together, in the order in which the graph can make them."""
    found: list[list[int]] = [[]]
    size = 0
    for number in sorted(range(len(grads)), key=lambda one: (made[one], -one)):
        if size >= _PART_BYTES:
            found.append([])
            size = 0
        found[-1].append(number)
        size += grads[number].shape.num_elements() * _numpy(grads[number]).itemsize
    return found


def _numpy(tensor: Any) -> Any:
    return np.dtype(tensor.dtype.as_numpy_dtype)


def _handed_over(graph: Any, step: _Step, grads: Sequence[Any], part: list[int], *before: Any) -> Any:
    with behind_latest(graph):
        given = [*before, *(grads[number] for number in part)]
        node = tf.numpy_function(step.part(part, bool(before)), given, tf.int64, stateful=False)
        node.set_shape([])
    return node


class _Step:
    """What the nodes of one function do, whenever it runs. An error waits for the last one, which can tell it."""

    def __init__(self, kinds: Any, names: Sequence[str], terms: Terms) -> None:
        self._of = kinds, names, terms
        self._exchange: Exchange | None = None
        self._error: Exception | None = None

    def part(self, numbers: Sequence[int], goes_on: bool) -> Callable[..., Any]:
        """The function that takes these gradients: the first of a step, or one with the last one's result before."""

        def call(*given: Array) -> Any:
            try:
                if not goes_on:
                    self._begin()
                if self._exchange is not None:
                    self._exchange.give(numbers, [np.asarray(one) for one in given[goes_on:]])
            except Exception as error:
                self._exchange, self._error = None, error
            return np.int64(0)

        return call

    def _begin(self) -> None:
        self._exchange = self._error = None
        exchange = exchange_of(*self._of)
        exchange.begin()
        self._exchange = exchange

    def end(self, _: Array) -> list[Array]:
        """The reduced gradients."""
        exchange, error = self._exchange, self._error
        self._exchange = self._error = None
        if error is not None:
            raise error
        if exchange is None:
            raise SlipstreamError(
                f"rank {world().rank} ends a step of training whose gradients it has not begun to hand over: another "
                "thread runs the same function. Run one step at a time"
            )
        return exchange.end()
