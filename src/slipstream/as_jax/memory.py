"""JAX's arrays on CPUs in memory that the process keeps.

XLA takes new memory for each result of a computation. Its threads have arenas of glibc's, which give large blocks back
to the system at once. So the system clears each page of each result anew: for a `psum` of 16 MiB that takes three times
as long as the sum. Here all threads use one arena, which keeps what is freed for later arrays. glibc gives back only
free memory at its end, above the last block in use; `malloc_trim` gives back all, which takes a second for 2.5 GiB, and
the system clears the pages again when they are needed. So nothing calls it here.
"""

from __future__ import annotations

import ctypes
import os

from slipstream.as_jax.conditions import carries_collectives, has_only_cpus

__all__ = ["add"]

_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1  # as malloc.h has them
_LARGEST = 32 << 20  # bytes of a block that can be kept; glibc takes no more
_KEPT = 2**31 - 1  # free bytes at the arena's end, above which these are given back


def add() -> None:
    """Before JAX starts threads. The user's own choice stays: any variable for glibc's malloc."""
    chosen = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if chosen or not (carries_collectives(os.environ) and has_only_cpus(os.environ)):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc
    if set_option is not None:
        set_option(_ARENA_MAX, 1)
        set_option(_MMAP_THRESHOLD, _LARGEST)
        set_option(_TRIM_THRESHOLD, _KEPT)
