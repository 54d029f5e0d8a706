"""Gates: nodes of a function that begin communication, for which compute that comes later waits.

With one inter-op thread TensorFlow follows a chain of compute to its end before it comes to other nodes that are ready.
So communication would begin when all compute is over. A control edge from a gate to compute has the gate run first.
Several threads need no edges, and would lose by them: a branch of the graph would wait for another one.

An edge never closes a cycle: it goes to no node that the gate depends on. TensorFlow adds edges of its own when the
trace is over, between nodes with a state, in the order of the program. They count as if they were there already.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import tensorflow as tf

__all__ = ["Nodes", "are_needed", "hold_back_later"]

_WITHOUT_COMPUTE = {
    *("BroadcastGradientArgs", "Const", "ExpandDims", "Identity", "IdentityN", "NoOp", "Pack", "Placeholder"),
    *("Rank", "ReadVariableOp", "Reshape", "Shape", "ShapeN", "Size", "Squeeze", "StopGradient"),
    *("StridedSlice", "VarHandleOp"),
}
_OF_SHAPE = {"OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"}  # no more of their input is used
# What is done with a gradient once backward has made it.
_BEHIND_BACKWARD = _WITHOUT_COMPUTE | {"Cast", "Mul", "RealDiv"}


def are_needed() -> bool:
    """Whether graphs have one inter-op thread."""
    threads = tf.config.threading.get_inter_op_parallelism_threads()
    if not threads:
        known = os.environ.get("TF_NUM_INTEROP_THREADS", "")
        threads = int(known) if known.isdigit() and int(known) else len(os.sched_getaffinity(0))
    return bool(threads == 1)


class Nodes:
    """The nodes that a function has now, by their place: that in the order in which they were added.

    A node's inputs come before it, and so they do in the order in which one thread would best run them.
    """

    def __init__(self, graph: Any) -> None:
        self._nodes = graph.get_operations()
        self._places = {one.name: place for place, one in enumerate(self._nodes)}
        self._before = [self._direct(one) for one in self._nodes]
        self._passed: dict[int, int] = {}

    def _direct(self, node: Any) -> list[int]:
        """The places of the nodes that it waits for."""
        found = [self._places[one.op.name] for one in node.inputs]
        return found + [self._places[one.name] for one in node.control_inputs]

    def __len__(self) -> int:
        return len(self._nodes)

    def place(self, node: Any) -> int:
        """Of a node."""
        return self._places[node.name]

    def ordered(self, begin: int, stop: int) -> list[Any]:
        """The nodes between two places that run in the order of the program, as they have a state."""
        found = self._nodes[max(begin, 0) : max(stop, 0)]
        return [one for one in found if one._is_stateful and not _uses_resource(one)]

    def made(self, node: Any) -> int:
        """The place of the compute that made what this node gives, before it was cast or multiplied; -1: of none."""
        todo = [self.place(node)]
        while todo:
            place = todo[-1]
            if place in self._passed:
                todo.pop()
            elif self._nodes[place].type not in _BEHIND_BACKWARD:
                self._passed[place] = place
            elif unknown := [one for one in self._before[place] if one not in self._passed]:
                todo += unknown
            else:
                self._passed[place] = max((self._passed[one] for one in self._before[place]), default=-1)
        return self._passed[self.place(node)]

    def varies(self, node: Any) -> bool:
        """Whether what a node gives may differ from run to run: it is made from an argument, or from a state.

        What it only waits for does not count: TensorFlow replaces such nodes by constants, too.
        """
        todo, seen = [self.place(node)], set[int]()
        while todo:
            place = todo.pop()
            if place in seen:
                continue
            seen.add(place)
            one = self._nodes[place]
            if one.type == "Placeholder" or _has_state(one):
                return True
            if one.type not in _OF_SHAPE or not all(given.shape.is_fully_defined() for given in one.inputs):
                todo += [self._places[given.op.name] for given in one.inputs]
        return False

    def hold_back(self, gates: Sequence[tuple[Any, int]], end: int) -> None:
        """Has compute wait for gates: that from behind the place of each one on, up to that of the next, or the end.

        Gates come in the order in which they run, each after the one before.
        """
        needed: set[int] = set()  # places of what the gates up to here depend on
        with_state = [place for place, one in enumerate(self._nodes) if _has_state(one)][::-1]
        for (gate, begin), (_, stop) in pairwise([*gates, (None, end)]):
            self._add_needed(self.place(gate), needed, with_state)
            behind: set[int] = {self.place(gate)}
            for place in range(begin + 1, stop + 1):
                if place in needed:
                    continue
                if not behind.isdisjoint(self._before[place]):
                    behind.add(place)
                elif _computes(self._nodes[place]):
                    self._nodes[place]._add_control_input(gate)
                    self._before[place].append(self.place(gate))
                    behind.add(place)

    def _add_needed(self, place: int, needed: set[int], with_state: list[int]) -> None:
        todo = [place]
        while todo:
            one = todo.pop()
            if one in needed:
                continue
            needed.add(one)
            todo += self._before[one]
            if _has_state(self._nodes[one]):
                while with_state and with_state[-1] < one:
                    todo.append(with_state.pop())


def hold_back_later(graph: Any, gate: Any) -> None:
    """Has the compute that was added to the graph after a gate wait for it."""
    later = []
    for node in reversed(graph.get_operations()):
        if node.name == gate.name:
            break
        later.append(node)
    behind = {gate.name}
    for node in reversed(later):
        if any(one.op.name in behind for one in node.inputs):
            behind.add(node.name)
        elif _computes(node):
            node._add_control_input(gate)
            behind.add(node.name)


def _has_state(node: Any) -> bool:
    return bool(node._is_stateful) or _uses_resource(node)


def _uses_resource(node: Any) -> bool:
    return any(one.dtype == tf.resource for one in node.inputs)


def _computes(node: Any) -> bool:
    return node.type not in _WITHOUT_COMPUTE and node._get_control_flow_context() is None
