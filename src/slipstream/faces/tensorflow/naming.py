"""Names of operations in graphs, by which they find those of the other ranks.

A session runs operations in whatever order, a different one on each rank. A function orders them (`order`), but for
those in conditions and loops of a backward function. So one that has no name of the user's gets one that says where it
is. A function that is called eagerly, without a graph, runs its operations in the order of the program.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

__all__ = ["Place", "in_session", "name_in_graph"]

_NAMED = "_slipstream_named"  # of a function's graph: how many operations got a name


class Place(str):
    """A name that says where in a function an operation is: the same on all ranks that trace the same program."""

    __slots__ = ()


def in_session() -> bool:
    """Whether what is built here runs in a session, also as part of a function, of a loop or of a condition."""
    return not tf.executing_eagerly() and not tf.compat.v1.executing_eagerly_outside_functions()


def name_in_graph(name: str | None, kind: str) -> str | None:
    """``name``, or if there is none, where the graph that is being built runs the operation; None outside of graphs.

    Ranks that build the operations of a ``kind`` in the same order, in the same name scopes, get the same names. A loop
    of a session whose rounds may run at the same time would have two operations of one name, which is an error.
    """
    if name or tf.executing_eagerly():
        return name
    graph: Any = tf.compat.v1.get_default_graph()
    if not in_session():
        return _place_in(graph)
    while (outer := getattr(graph, "outer_graph", None)) is not None:  # those of functions
        graph = outer
    return str(graph.unique_name(f"slipstream_{kind}"))


def _place_in(graph: Any) -> Place:
    number = getattr(graph, _NAMED, 0) + 1
    setattr(graph, _NAMED, number)
    functions = []
    while getattr(graph, "building_function", False):
        functions.append(
            re.sub(r"_[0-9]+", "", graph.name)
        )  # TensorFlow counts all functions, on each rank its own
        graph = graph.outer_graph
    return Place(f"operation {number} in {' in '.join(functions)}")
