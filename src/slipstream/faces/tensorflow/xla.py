"""Operations in functions that XLA compiles (``tf.function(jit_compile=True)``), on the CPU: calls by XLA's FFI.

XLA calls the handler of `native/xla` with the memory of the tensors: no Python, no copy. TensorFlow's operation
XlaCallModule brings the call into the graph, as text of StableHLO. XLA orders what depends on each other and nothing
else: so the calls of a function are chained by a byte that each gives to the next. They have a group of their own.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import struct
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from slipstream import _core
from slipstream.comm.collectives.native_calls import handle_of
from slipstream.comm.membership.group import Group
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.tensorflow.native import Call

__all__ = ["called", "is_compiling", "refuse"]

_TARGET = b"slipstream_call"
_TYPES = {
    "bool": "i1",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "complex<f32>",
    "complex128": "complex<f64>",
}
for _bits in (8, 16, 32, 64):
    _TYPES |= {f"int{_bits}": f"i{_bits}", f"uint{_bits}": f"ui{_bits}"}
_TOKEN = "_slipstream_token"  # of a graph: what its latest call gives to the next
_VERSION = 9  # of the module: of TensorFlow 2.16 and later


def is_compiling() -> bool:
    """Whether what is built here is part of a function that XLA compiles."""
    graph = tf.compat.v1.get_default_graph()
    return bool(graph.building_function and control_flow_util.GraphOrParentsInXlaContext(graph))


def refuse(what: str, why: str = "it goes through Python, which XLA cannot call") -> None:
    """Raises NotImplementedError, which names the operation and what to do."""
    raise NotImplementedError(
        f"{what} of slipstream does not work in a function with jit_compile=True: {why}. Such functions can have "
        "allreduce, grouped_allreduce, broadcast, DistributedGradientTape and DistributedOptimizer. Call others "
        "outside of them, or let XLA compile only functions that do not communicate"
    )


def called(call: Call | None, inputs: Sequence[Any], what: str) -> list[Any]:
    """The operation on each tensor, in the graph; NotImplementedError, which says ``what``, if that cannot be."""
    if call is None:
        refuse(what)
    assert call is not None
    graph = tf.compat.v1.get_default_graph()
    if not _is_whole(graph):
        refuse(
            what,
            "it is in a condition, a loop or a function within that function, where nothing orders it. Call it in the "
            "compiled function itself",
        )
    for one in inputs:
        if not one.shape.is_fully_defined():
            refuse(what, f"the shape {one.shape} of its tensor is not known when the function is traced")
        if one.dtype.name not in _TYPES:
            refuse(what, f"the engine does not communicate {one.dtype.name}")
    problem = _registered()
    if problem:
        refuse(what, problem)
    before = getattr(graph, _TOKEN, None)
    results = _call_module()(
        [*inputs, *([] if before is None else [before])],
        version=_VERSION,
        module=_module(call, inputs, before is not None),
        Sout=[*[one.shape for one in inputs], []],
        Tout=[*[one.dtype for one in inputs], tf.uint8],
        platforms=["CPU"],
    )
    setattr(graph, _TOKEN, results[-1])
    return list(results[:-1])


@functools.cache
def _call_module() -> Any:
    return importlib.import_module("tensorflow.compiler.tf2xla.python.xla").call_module


def _is_whole(graph: Any) -> bool:
    """Whether the graph is that of the function which XLA compiles, not of a condition, a loop or a function in it.

    TensorFlow marks the graph that calls the function, or for ``get_concrete_function`` its own: by a context, which
    has operations in one graph then. The function is traced twice where it makes variables.
    """
    if type(graph).__name__ != "FuncGraph":  # those of conditions and loops are derived from it
        return False
    of_graph = graph._get_control_flow_context() or graph.outer_graph._get_control_flow_context()
    context = control_flow_util.GetContainingXLAContext(of_graph)
    if context is None:
        return False
    first = context.__dict__.setdefault("_slipstream_function", (graph.name, weakref.ref(graph)))
    return first[1]() is graph or first[0] == graph.name


def _module(call: Call, inputs: Sequence[Any], is_after: bool) -> str:
    types = [_type_of(one) for one in inputs]
    token = "tensor<ui8>"
    given = [*types, token] if is_after else types
    parameters = ", ".join(f"%arg{i}: {one}" for i, one in enumerate(given))
    arguments = ", ".join(f"%arg{i}" for i in range(len(given)))
    results = ", ".join([*types, token])
    values = ", ".join(f"%0#{i}" for i in range(len(types) + 1))
    scales = struct.unpack("<qq", struct.pack("<dd", call.prescale, call.postscale))
    # What native/xla reads, in its order.
    fields = [call.collective, _group_of(call.process_set), call.op, call.root, 0, 0, call.wire, *scales]
    numbers = ", ".join(map(str, [*fields, len(types), 0, 0, 1]))
    return f"""module @slipstream {{
  func.func public @main({parameters}) -> ({results}) {{
    %0:{len(types) + 1} = stablehlo.custom_call @{_TARGET.decode()}({arguments}) {{
      api_version = 4 : i32, has_side_effect = true, backend_config = {{call = array<i64: {numbers}>}}
    }} : ({", ".join(given)}) -> ({results})
    return {values} : {results}
  }}
}}"""


def _type_of(tensor: Any) -> str:
    sizes = "".join(f"{one}x" for one in tensor.shape.as_list())
    return f"tensor<{sizes}{_TYPES[tensor.dtype.name]}>"


_beside: dict[Group, tuple[Group, int]] = {}  # the group for compiled functions, and C's handle of it


def _group_of(process_set: ProcessSet) -> int:
    """The id of the group for compiled functions. They name it: it goes with the job."""
    group: Group = process_set.group
    if group not in _beside:
        found = group.beside("XLA's operations")
        _beside[group] = found, handle_of(found)

        def leave() -> None:
            _, handle = _beside.pop(group)
            _core.c_release(handle)

        group.job.when_left(leave)
    identity: int = _beside[group][0].id
    return identity


class _Text(ctypes.Structure):
    _fields_ = (("start", ctypes.c_char_p), ("length", ctypes.c_size_t))


class _Api(ctypes.Structure):
    """XLA_FFI_Api, as far as the handler needs it: `native/xla/ffi_abi.h`."""

    _fields_ = (
        *(("size", ctypes.c_size_t), ("extension", ctypes.c_void_p)),
        *(("version_size", ctypes.c_size_t), ("version_extension", ctypes.c_void_p)),
        *(("major", ctypes.c_int), ("minor", ctypes.c_int)),
        *(("internal", ctypes.c_void_p), ("errors", ctypes.c_void_p * 3), ("register", ctypes.c_void_p)),
        *(("others", ctypes.c_void_p * 9), ("futures", ctypes.c_void_p * 3)),
    )


class _Register(ctypes.Structure):
    """XLA_FFI_Handler_Register_Args."""

    _fields_ = (
        *(("size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("name", _Text), ("platform", _Text)),
        *(("instantiate", ctypes.c_void_p), ("prepare", ctypes.c_void_p), ("initialize", ctypes.c_void_p)),
        *(("execute", ctypes.c_void_p), ("traits", ctypes.c_uint32)),
    )


@functools.cache
def _registered() -> str:
    """Has TensorFlow's XLA know the handler; why that cannot be, or ''."""
    found = _api()
    if found is None or found.major != 0 or found.minor < 1 or found.size < ctypes.sizeof(_Api):
        return f"TensorFlow {tf.__version__} does not let others register operations of XLA, or not these"
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    handler = pointer(_core.xla_handler(), b"xla._CUSTOM_CALL_TARGET")
    name, platform = _Text(_TARGET, len(_TARGET)), _Text(b"Host", 4)
    given = _Register(ctypes.sizeof(_Register), None, name, platform, None, None, None, handler, 0)
    register = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Register))(found.register)
    return "XLA refuses the operation" if register(ctypes.byref(given)) else ""


def _api() -> _Api | None:
    folder = os.path.dirname(tf.__file__)
    for file in ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2"):
        try:
            library = ctypes.CDLL(os.path.join(folder, file), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue
        for symbol in ("XLA_FFI_GetApi", "_ZN3xla3ffi12GetXlaFfiApiEv"):
            if hasattr(library, symbol):
                get = library[symbol]
                get.restype = ctypes.POINTER(_Api)
                api: _Api = get().contents
                return api
    return None
