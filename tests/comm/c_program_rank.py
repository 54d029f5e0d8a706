"""One rank of the test of a C program.    c_program_rank.py LIBRARY ..."""

from __future__ import annotations

import ctypes
import sys

import slipstream
from slipstream import _core


def main() -> None:
    slipstream.init()
    rank, n = slipstream.rank(), slipstream.size()
    core = ctypes.CDLL(_core.__file__)
    core.slipstream_get_api.restype = ctypes.c_void_p
    table = core.slipstream_get_api(1)
    assert core.slipstream_get_api(2) is None
    for path in sys.argv[1:]:
        program = ctypes.CDLL(path)
        program.problem.restype, program.problem.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
        program.sum_over_ranks.restype = ctypes.c_double
        program.sum_over_ranks.argtypes = [ctypes.c_void_p, ctypes.c_double]
        assert program.problem(table) is None
        for i in range(5):
            assert program.sum_over_ranks(table, rank + i) == n * i + n * (n - 1) / 2
        # what an older package, and one of another version, would hand out
        older = (ctypes.c_uint32 * 64)(1, 160)
        assert b"older" in program.problem(ctypes.addressof(older))
        assert program.sum_over_ranks(ctypes.addressof(older), 1) == -1
        other = (ctypes.c_uint32 * 64)(2, 4096)
        assert b"version 1" in program.problem(ctypes.addressof(other))
        assert b"version 1" in program.problem(None)


if __name__ == "__main__":
    main()
