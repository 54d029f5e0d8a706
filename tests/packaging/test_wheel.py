"""The wheel works in an empty environment on a machine without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WORKER = textwrap.dedent(
    """
    import numpy as np
    import slipstream

    slipstream.init()
    assert slipstream.size() == 2
    x = np.arange(1023, dtype=np.float32) + slipstream.rank()
    y = slipstream.all_reduce(x)
    assert np.array_equal(y, 2 * np.arange(1023, dtype=np.float32) + 1), y
    print("sum is right on rank", slipstream.rank(), flush=True)
    slipstream.shutdown()
    """
)


def run(command: Sequence[str | Path], **options: Any) -> str:
    """Run `command`, return what it printed; a failure shows that too."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}"
    printed: str = done.stdout
    return printed


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with the environment that runs the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    build: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-build-isolation",
        "--no-deps",
    ]
    run([*build, "--wheel-dir", folder, ROOT])
    (found,) = folder.glob("slipstream-*.whl")
    return found


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of a new environment that holds the wheel and its base dependencies only."""
    folder = tmp_path_factory.mktemp("bare")
    run([sys.executable, "-m", "venv", folder])
    python = folder / "bin" / "python"
    pip: list[str | Path] = [python, "-m", "pip", "install", "-q", "--only-binary=:all:"]
    run([*pip, "-c", ROOT / "constraints.txt", wheel], env=without_compiler(folder / "bin"))
    return folder / "bin"


def without_compiler(bin_folder: Path) -> dict[str, str]:
    """Return an environment whose PATH has `bin_folder` and nothing else."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name == "HOME"}
    return {**kept, "PATH": str(bin_folder), "LC_ALL": "C.UTF-8"}


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.startswith("slipstream/_core.") and name.endswith(".so") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    outside = [name for name in names if not name.startswith(("slipstream/", "slipstream-"))]
    assert outside == []
    assert [name for name in names if name.endswith((".cpp", ".h", ".a"))] == []


def test_module_needs_no_cxx_runtime(wheel: Path, tmp_path: Path) -> None:
    (name,) = (n for n in zipfile.ZipFile(wheel).namelist() if n.endswith(".so"))
    module = zipfile.ZipFile(wheel).extract(name, tmp_path)
    data = Path(module).read_bytes()
    assert b"libc.so.6" in data
    assert b"libstdc++.so" not in data
    assert b"libgcc_s.so" not in data


def test_two_ranks_without_a_compiler(bare: Path, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    command: list[str | Path] = [bare / "slipstream", "run", "-np", "2", "--", bare / "python", script]
    printed = run(command, env=without_compiler(bare), cwd=tmp_path, timeout=120)
    assert printed.count("sum is right on rank") == 2


def test_command_starts_without_a_framework(bare: Path, tmp_path: Path) -> None:
    code = "import sys, slipstream.cli.main; print(sorted({'torch', 'tensorflow', 'jax'} & set(sys.modules)))"
    printed = run([bare / "python", "-c", code], env=without_compiler(bare), cwd=tmp_path)
    assert printed.strip() == "[]"
