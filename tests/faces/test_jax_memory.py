"""JAX's arrays in unmodified programs: memory that the process keeps (as_jax/memory.py)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch.test_run import tag
from slipstream.as_jax import memory

__all__ = ["tag"]

HERE = Path(__file__).parent
OURS = {
    "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi",
    "MPITRAMPOLINE_LIB": "/somewhere/libslipstream_mpi.so",
    "JAX_PLATFORMS": "cpu",
}


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who runs the tests may have set variables for glibc's malloc."""
    for name in [one for one in os.environ if one.startswith("MALLOC_") or one == "GLIBC_TUNABLES"]:
        monkeypatch.delenv(name)


class _Library:
    """Stands for the C library."""

    def __init__(self) -> None:
        self.options: dict[int, int] = {}

    def mallopt(self, option: int, value: int) -> int:
        self.options[option] = value
        return 1


@pytest.mark.parametrize(
    ("changed", "acts"),
    [
        ({}, True),
        ({"MALLOC_ARENA_MAX": "8"}, False),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, False),
        ({"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}, False),
        ({"JAX_PLATFORMS": "cuda,cpu"}, None),  # as JAX has plug-ins here
    ],
)
def test_the_user_s_choice_stays(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], acts: bool | None
) -> None:
    library = _Library()
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: library)
    for name, value in (OURS | changed).items():
        monkeypatch.setenv(name, value)
    if acts is None:
        monkeypatch.setattr(memory, "has_only_cpus", lambda _: False)
    memory.add()
    assert library.options == ({-8: 1, -3: 32 << 20, -1: 2**31 - 1} if acts else {})


FREES = """
import ctypes
from slipstream.as_jax import memory

memory.add()
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
c.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def resident():
    return int(open("/proc/self/statm").read().split()[1]) >> 8  # MiB

before = resident()
blocks = [c.malloc(16 << 20) for _ in range(10)]
above = c.malloc(1 << 16)
for one in blocks:
    c.memset(one, 1, 16 << 20)
    c.free(one)
kept = resident() - before
c.malloc_trim(0)
print(kept, resident() - before)
"""


@pytest.mark.skipif(os.confstr("CS_GNU_LIBC_VERSION") is None, reason="the options are glibc's")
def test_what_is_freed_stays_until_malloc_trim() -> None:
    found = subprocess.run(
        [sys.executable, "-c", FREES], env=OURS, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    kept, left = map(int, found.stdout.split())
    assert kept > 150
    assert left < 16


def test_results_of_a_psum_take_no_new_pages(tag: str) -> None:
    """Of 4096 that each of them has."""
    pytest.importorskip("jax")
    from faces.test_jax_unmodified import job

    code, out, err = job(tag, 2, HERE / "jax_memory_rank.py")
    assert code == 0, err
    pages = [int(count) for count in re.findall(r"pages: (\d+)", out)]
    assert len(pages) == 2
    assert max(pages) < 1024, pages
