"""Many ranks as threads of native code, which run plans that are made here, on arrays that are checked here.

The library is built with the native tests (``make native-build``); bytes move within the process, so 64 ranks need no
sockets. The structures are those of ``native/tests/many_ranks.cpp``.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plan.reference import Case
from slipstream.base.dtypes import DType, Op
from slipstream.plan.steps import Plan

__all__ = ["LIBRARY", "ManyRanks", "many_ranks"]

BUILD = Path(__file__).parents[2] / "build" / str(sys.implementation.cache_tag)  # as the Makefile has it
LIBRARY = BUILD / "native/libmany_ranks.so"
# The native core cuts these equally, as `comm/collectives/addresses.py` asks; others bring tables of their blocks.
EQUALLY_CUT = {"all_reduce", "broadcast", "reduce"}


class _Part(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("steps", ctypes.c_uint64),
        ("deps", ctypes.c_void_p),
        ("dep_count", ctypes.c_uint64),
        ("in_", ctypes.c_void_p),
        ("in_offsets", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_offsets", ctypes.c_void_p),
    )


class _Collective(ctypes.Structure):
    _fields_ = (
        ("operation", ctypes.c_char_p),
        ("blocks", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("op", ctypes.c_int32),
        ("chunk_bytes", ctypes.c_uint32),
        ("count", ctypes.c_uint64),
    )


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(LIBRARY))
    library.many_ranks_open.restype = ctypes.c_void_p
    library.many_ranks_close.argtypes = [ctypes.c_void_p]
    library.many_ranks_run.argtypes = [ctypes.c_void_p] * 3
    library.many_ranks_run.restype = ctypes.c_char_p
    return library


class ManyRanks:
    """Ranks that live until `many_ranks` ends."""

    def __init__(self, library: ctypes.CDLL, opened: int, hosts: Sequence[int]) -> None:
        self.hosts = tuple(hosts)
        self._library = library
        self._opened = opened

    def run(self, plans: Sequence[Plan], case: Case, chunk_bytes: int) -> list[NDArray[np.int64]]:
        """Run the plans of all ranks on ``case``; return every rank's output. Raises AssertionError if one fails."""
        collective = plans[0].collective
        equal = collective in EQUALLY_CUT
        count = max(table[-1] for table in (*case.in_tables, *case.out_tables)) if equal else 0
        held = []  # what the native code reads, until it is done
        parts = (_Part * len(plans))()
        outputs = []
        for rank, plan in enumerate(plans):
            rows, deps = plan.encode()
            tables = [np.array(t[rank], np.uint64) for t in (case.in_tables, case.out_tables)]
            out = np.full(count if equal else case.out_tables[rank][-1], -1, np.int64)
            given = case.inputs[rank]
            source = given if given.size or not equal else out  # a rank that is no root needs no input
            held += [rows, deps, source, *tables]
            addresses = [None if equal else table.ctypes.data for table in tables]
            parts[rank] = _Part(
                rows.ctypes.data,
                len(rows),
                deps.ctypes.data,
                len(deps),
                source.ctypes.data,
                addresses[0],
                out.ctypes.data,
                addresses[1],
            )
            outputs.append(out)
        name = f"{collective}/{plans[0].algorithm}".encode()
        all_ranks = _Collective(name, plans[0].blocks, DType.I64, Op.SUM, chunk_bytes, count)
        error = self._library.many_ranks_run(self._opened, ctypes.byref(all_ranks), ctypes.byref(parts))
        assert not error, error.decode()
        return outputs


@contextmanager
def many_ranks(hosts: Sequence[int]) -> Iterator[ManyRanks]:
    """Ranks for a while; ``hosts[r]``: the host that rank r believes itself on."""
    library = _library()
    opened = library.many_ranks_open(len(hosts), (ctypes.c_int32 * len(hosts))(*hosts))
    try:
        yield ManyRanks(library, opened, hosts)
    finally:
        library.many_ranks_close(opened)
