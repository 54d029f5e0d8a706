"""The C table, by ctypes from several processes, and by a program in C."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import slipstream
from comm import ranks

FOLDER = Path(__file__).parent
HEADERS = {"v1": FOLDER / "abi" / "slipstream_v1.h", "now": Path(slipstream.get_include()) / "slipstream.h"}


@pytest.mark.parametrize(("n", "transport"), [(1, "shm"), (2, "shm"), (3, "tcp"), (3, "mixed")])
def test_every_collective_in_every_way(n: int, transport: str) -> None:
    ranks.run(FOLDER / "c_api_rank.py", n, transport=transport)


def test_a_program_of_version_1_works(tmp_path: Path) -> None:
    """It is compiled against the header of then, and of now: sizes and places are asserted as it is."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    libraries = []
    for name, header in HEADERS.items():
        library = tmp_path / f"{name}.so"
        flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-shared", "-fPIC"]
        source = FOLDER / "abi" / "program.c"
        subprocess.run(
            [compiler, *flags, f'-DHEADER="{header}"', str(source), "-o", str(library)], check=True
        )
        libraries.append(str(library))
    ranks.run(FOLDER / "c_program_rank.py", 2, args=libraries)


def test_the_header_comes_with_the_package() -> None:
    source = FOLDER.parents[1] / "native" / "capi" / "slipstream.h"
    assert HEADERS["now"].read_text() == source.read_text()
