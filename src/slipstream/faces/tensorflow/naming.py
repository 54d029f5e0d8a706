"""Names of operations in graphs, by which they find those of the other ranks.

A session runs operations in whatever order, a different one on each rank. A function orders them (`order`), but for
those in conditions and loops of a backward function. So one that has no name of the user's gets one that says where it
is. A function that is called eagerly, without a graph, runs its operations in the order of the program.
"""

from __future__ import annotations

import functools
import re
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import control_flow_v2_func_graphs
from tensorflow.python.util import tf_decorator

from slipstream.faces.horovod.process_sets import ProcessSet

__all__ = ["Place", "in_session", "name_in_graph"]

_CONTROL_FLOW = (
    control_flow_v2_func_graphs.CondBranchFuncGraph,
    control_flow_v2_func_graphs.WhileBodyFuncGraph,
    control_flow_v2_func_graphs.WhileCondFuncGraph,
)

_SOURCE = "_slipstream_source"  # of a function's graph: where the program defines the function
_TEMPORARY = (tempfile.gettempprefix(), "__autograph_generated_file")  # how names of files begin
_NAMED = "_slipstream_named"  # of a function's graph: how many operations of each process set got a name


class Place(str):
    """A name that says where in a function an operation is: the same on all ranks that trace the same program."""

    __slots__ = ()


def in_session() -> bool:
    """Whether what is built here runs in a session, also as part of a function, of a loop or of a condition."""
    return not tf.executing_eagerly() and not tf.compat.v1.executing_eagerly_outside_functions()


def name_in_graph(name: str | None, kind: str, process_set: ProcessSet) -> str | None:
    """``name``, or if there is none, where the graph that is being built runs the operation; None outside of graphs.

    Ranks that build the operations of a ``kind`` in the same order, in the same name scopes, get the same names. A loop
    of a session whose rounds may run at the same time would have two operations of one name, which is an error.
    """
    if name or tf.executing_eagerly():
        return name
    graph: Any = tf.compat.v1.get_default_graph()
    if not in_session():
        return _place_in(graph, process_set)
    while (outer := getattr(graph, "outer_graph", None)) is not None:  # those of functions
        graph = outer
    return str(graph.unique_name(f"slipstream_{kind}"))


def _name_of(graph: Any) -> str:
    """That of the program's function, without the numbers by which TensorFlow counts what it makes of functions.

    They differ between ranks. The functions are those of conditions and loops, and forward and backward ones.
    """
    name = str(graph.name)
    if isinstance(graph, _CONTROL_FLOW):
        return re.sub(r"_[0-9]+", "", name)
    return re.sub(r"_[0-9]+$", "", name) if name.startswith("__") else name


def _place_in(graph: Any, process_set: ProcessSet) -> Place:
    counts: dict[int | None, int] = getattr(graph, _NAMED, None) or {}
    number = (
        counts.get(process_set.process_set_id, 0) + 1
    )  # ranks that are not in a set do not call its operations
    setattr(graph, _NAMED, counts | {process_set.process_set_id: number})
    functions, source = [], ""
    while getattr(graph, "building_function", False):
        functions.append(_name_of(graph))
        source = getattr(graph, _SOURCE, "") or source
        graph = graph.outer_graph
    return Place(f"operation {number} in {' in '.join(functions)}{source and f' ({source})'}")


def _source_of(function: Any) -> str:
    """Where a function is defined, as all ranks say it: "train.py:12". Of one that decorators wrap: the wrapped one.

    Names alone do not tell functions apart: all lambdas have one, and all objects that can be called.
    """
    _, python = tf_decorator.unwrap(function)
    while isinstance(python, functools.partial) or hasattr(python, "__wrapped__"):
        python = python.func if isinstance(python, functools.partial) else python.__wrapped__
    kind = "" if hasattr(python, "__code__") else type(python).__qualname__
    code = getattr(python if not kind else type(python).__call__, "__code__", None)
    if code is None or not _is_lasting(code.co_filename):
        return kind
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}{_column_of(code)}{kind and f' of {kind}'}"


def _is_lasting(file: str) -> bool:
    """Whether it has the same name and lines on all ranks: no text that was executed, such as a notebook's cell, no
    temporary file, and nothing that is installed, of which hosts may have several versions.
    """
    path = Path(file)
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return path.is_file() and not installed and not path.name.startswith(_TEMPORARY)


def _column_of(code: Any) -> str:
    """Of a lambda: a line may have several."""
    if code.co_name != "<lambda>" or not hasattr(code, "co_positions"):
        return ""
    columns = [column for _, _, column, _ in code.co_positions() if column]
    return f":{min(columns)}" if columns else ""


def _install() -> None:
    """Has the graph of a function say where that is defined, before it is traced."""
    trace = func_graph.func_graph_from_py_func

    @functools.wraps(trace)
    def traced(name: Any, python_func: Any, *args: Any, **kwds: Any) -> Any:
        graph = kwds.get("func_graph")
        if graph is not None and not isinstance(graph, _CONTROL_FLOW):
            setattr(graph, _SOURCE, _source_of(python_func))
        return trace(name, python_func, *args, **kwds)

    func_graph.func_graph_from_py_func = traced


_install()
