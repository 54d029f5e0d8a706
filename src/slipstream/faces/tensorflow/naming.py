"""Names of operations in the graphs of sessions, which run them in whatever order, a different one on each rank.

A function that is called eagerly runs its operations in the order of the program, so there the order matches them.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["in_session", "name_in_session"]


def in_session() -> bool:
    """Whether what is built here runs in a session, also as part of a function, of a loop or of a condition."""
    return not tf.executing_eagerly() and not tf.compat.v1.executing_eagerly_outside_functions()


def name_in_session(name: str | None, kind: str) -> str | None:
    """``name``, or if there is none, where a session runs the operation: one that its graph has for it alone.

    Ranks that build the operations of a ``kind`` in the same order, in the same name scopes, get the same names. A loop
    whose rounds may run at the same time would have two operations of one name, which is an error.
    """
    if name or not in_session():
        return name
    graph: Any = tf.compat.v1.get_default_graph()
    while (outer := getattr(graph, "outer_graph", None)) is not None:  # those of functions
        graph = outer
    return str(graph.unique_name(f"slipstream_{kind}"))
