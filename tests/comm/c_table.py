"""The C table by ctypes, as slipstream.h declares it: for tests."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.base.dtypes import from_numpy

NAMES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "send",
    "recv",
    "barrier",
)
PENDING = 8
Done = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p)
Counts = ctypes.POINTER(ctypes.c_uint64)


class Call(ctypes.Structure):
    _fields_ = (
        ("struct_bytes", ctypes.c_uint32),
        ("collective", ctypes.c_int32),
        ("src", ctypes.c_void_p),
        ("dst", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("counts", Counts),
        ("recv_counts", Counts),
        *((name, ctypes.c_int32) for name in ("dtype", "op", "root", "tag", "wire", "urgency")),
        *((name, ctypes.c_double) for name in ("prescale", "postscale", "timeout")),
        ("name", ctypes.c_char_p),
    )


_P, _I, _OUT = ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
_CALL = ctypes.POINTER(Call)
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "group_world": (_I, _OUT),
    "group_by_id": (_I, ctypes.c_uint64, _OUT),
    "group_make": (_I, ctypes.POINTER(_I), ctypes.c_uint32, _OUT),
    "group_retain": (None, _P),
    "group_release": (None, _P),
    "group_id": (ctypes.c_uint64, _P),
    "group_rank": (_I, _P),
    "group_size": (_I, _P),
    "group_ranks": (_I, _P, ctypes.POINTER(_I)),
    "submit": (_I, _P, _CALL, Done, _P),
    "begin": (_I, _P, _CALL, _OUT),
    "run": (_I, _P, _CALL),
    "work_wait": (_I, _P, ctypes.c_double),
    "work_test": (_I, _P),
    "work_free": (None, _P),
    "last_error": (ctypes.c_char_p,),
    "last_error_rank": (_I,),
    "abort": (_I, _P, ctypes.c_char_p),
    "dtype_bytes": (ctypes.c_size_t, _I),
    "reduces": (_I, _I, _I),
}


class Table(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        *((name, ctypes.CFUNCTYPE(*types)) for name, types in FUNCTIONS.items()),
    )


def table() -> Table:
    """The one of this process."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found = Table.from_address(pointer(_core.c_api(), b"slipstream.c_api.v1"))
    assert found.version == 1
    assert found.bytes == ctypes.sizeof(Table)
    return found


class Failed(Exception):
    """What a function of the table has returned, and said."""

    def __init__(self, status: int, text: str, rank: int = -1) -> None:
        super().__init__(text)
        self.status, self.rank = status, rank


class Caller:
    """Makes calls on one group, in one of three ways: "run", "submit" (by a callback), "begin" (and wait)."""

    def __init__(self, group: int | None = None) -> None:
        self.table = table()
        if group is None:
            found = ctypes.c_void_p()
            self.check(self.table.group_world(ctypes.byref(found)))
            assert found.value is not None
            group = found.value
        self.group = group

    def check(self, status: int) -> None:
        if status:
            raise Failed(status, self.table.last_error().decode(), self.table.last_error_rank())

    def call(
        self,
        name: str,
        src: NDArray[Any] | None = None,
        dst: NDArray[Any] | None = None,
        count: int = 0,
        *,
        way: str = "run",
        counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        label: str | None = None,
        **fields: Any,
    ) -> None:
        array = src if src is not None else dst
        call = Call(struct_bytes=ctypes.sizeof(Call), collective=NAMES.index(name) + 1, count=count)
        call.prescale = call.postscale = 1.0
        call.dtype = 0 if array is None else int(from_numpy(array.dtype))
        for pointer, memory in (("src", src), ("dst", dst)):
            if memory is not None:
                setattr(call, pointer, memory.ctypes.data)
        for pointer, numbers in (("counts", counts), ("recv_counts", recv_counts)):
            if numbers is not None:
                setattr(call, pointer, (ctypes.c_uint64 * len(numbers))(*numbers))
        call.name = None if label is None else label.encode()
        for field, value in fields.items():
            setattr(call, field, value)
        getattr(self, f"_{way}")(call)

    def _run(self, call: Call) -> None:
        self.check(self.table.run(self.group, ctypes.byref(call)))

    def _begin(self, call: Call) -> None:
        work = ctypes.c_void_p()
        self.check(self.table.begin(self.group, ctypes.byref(call), ctypes.byref(work)))
        try:
            while (status := self.table.work_wait(work, 0.1)) == PENDING:
                pass
            self.check(status)
            assert self.table.work_test(work) == 0
        finally:
            self.table.work_free(work)

    def _submit(self, call: Call) -> None:
        ended = threading.Event()
        told: list[tuple[int, str]] = []

        def done(_: int | None, status: int, message: bytes) -> None:
            told.append((status, message.decode()))
            ended.set()

        callback = Done(done)
        self.check(self.table.submit(self.group, ctypes.byref(call), callback, None))
        assert ended.wait(120)
        ((status, text),) = told
        if status:
            raise Failed(status, text)


def nothing() -> NDArray[np.uint8]:
    """An array that has no elements."""
    return np.zeros(0, np.uint8)
