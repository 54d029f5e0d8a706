"""The wheel of every declared Python at hand works in an empty environment on a machine without a compiler.

The sources are copied to an empty folder, made into an sdist, unpacked, and built there with `pip wheel .`, so that
neither build caches nor files the sdist lacks can help. From 3.12 on, one wheel (stable ABI) serves all versions.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DECLARED = ["3.10", "3.11", "3.12", "3.13", "3.14"]
FIRST_STABLE = "3.12"  # the first version whose stable ABI is rich enough
RUNNING = "{}.{}".format(*sys.version_info)
BUILD_INPUTS = ("native/", "src/", "cmake/", "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Prints, as JSON, what a Python is and whether it can build an extension and make an environment.
PROBE = textwrap.dedent(
    """
    import importlib.util, json, os, sys, sysconfig
    print(json.dumps({
        "version": "%d.%d" % sys.version_info[:2],
        "usable": sys.implementation.name == "cpython"
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and all(importlib.util.find_spec(name) is not None for name in ("venv", "ensurepip")),
        "headers": os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
    }))
    """
)

WORKER = textwrap.dedent(
    """
    import os
    import sys
    from pathlib import Path

    import numpy as np
    import slipstream

    slipstream.init()
    assert slipstream.size() == 2
    for count in (1023, 1 << 20):
        x = np.arange(count, dtype=np.float32) + slipstream.rank()
        y = slipstream.all_reduce(x)
        assert np.array_equal(y, 2 * np.arange(count, dtype=np.float32) + 1), y
    # two ranks map a memfd of this name only while a shared-memory link joins them
    shared = "memfd:slipstream-link" in Path("/proc/self/maps").read_text()
    assert shared == (os.environ["SLIPSTREAM_TRANSPORT"] == "shm"), shared
    slipstream.barrier()  # a peer that has ended takes its link away
    print("sum is right on rank", slipstream.rank(), "of Python", *sys.version_info[:2], flush=True)
    slipstream.shutdown()
    """
)


@dataclass(frozen=True)
class Interpreter:
    """A CPython that runs, can make environments, and, when it has headers, can build."""

    path: Path
    version: str
    headers: bool


@dataclass(frozen=True)
class Installed:
    """An environment that holds the wheel and its base dependencies only."""

    version: str
    bin: Path
    wheel: Path

    def run(self, *command: str | Path, cwd: Path, **variables: str) -> str:
        """Run a program of this environment where nothing else is on PATH; return what it printed."""
        env = {**without_compiler(self.bin), **variables}
        return run([self.bin / command[0], *command[1:]], env=env, cwd=cwd, timeout=120)


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


def minor(version: str) -> int:
    return int(version.split(".")[1])


def candidates(version: str) -> Iterator[Path]:
    """Yield where a Python of that version may be, the one that runs the tests first."""
    if version == RUNNING:
        yield Path(sys.executable)
    for folder in os.get_exec_path():
        yield Path(folder) / f"python{version}"
    pyenv = shutil.which("pyenv")
    if pyenv is not None:
        root = subprocess.run([pyenv, "root"], stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
        if root:
            yield from sorted(Path(root).glob(f"versions/*/bin/python{version}"))


def probe(path: Path) -> Interpreter | None:
    """Return the interpreter at `path`, or None when it does not run (a version manager's shim may not) or is unfit."""
    if not path.is_file():
        return None
    command = [str(path), "-I", "-c", PROBE]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    if done.returncode != 0:
        return None
    facts = json.loads(done.stdout)
    return Interpreter(path, facts["version"], facts["headers"]) if facts["usable"] else None


@functools.cache
def interpreter(version: str) -> Interpreter | None:
    """Return a CPython of that version, one that can build where there is one; None when none is at hand."""
    found = [one for path in candidates(version) if (one := probe(path)) and one.version == version]
    return next((one for one in found if one.headers), found[0] if found else None)


def builder(version: str) -> Interpreter | None:
    """Return what builds the wheel for that version: itself, or the first that makes the stable-ABI wheel."""
    versions = [version]
    if minor(version) >= minor(FIRST_STABLE):
        versions = [one for one in DECLARED if minor(FIRST_STABLE) <= minor(one) <= minor(version)]
    return next((one for one in map(interpreter, versions) if one is not None and one.headers), None)


def inherited() -> dict[str, str]:
    """Return what pip and a network need of our environment."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("PIP_", "SSL_")) or name == "HOME" or name.lower().endswith("_proxy")
    }


def without_compiler(bin_folder: Path) -> dict[str, str]:
    """Return an environment whose PATH has `bin_folder` and nothing else."""
    return {**inherited(), "PATH": str(bin_folder), "LC_ALL": "C.UTF-8"}


def pinned(env: dict[str, str]) -> dict[str, str]:
    """Return `env` in which pip keeps to constraints.txt, in the isolated build environments too."""
    constraints = str(ROOT / "constraints.txt")
    return {**env, "PIP_CONSTRAINT": constraints, "PIP_BUILD_CONSTRAINT": constraints}


def source_files() -> list[str]:
    """Return what a clone of the working tree would hold, relative to ROOT."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):  # not a repository: an unpacked sdist
        private = {".venv", "build", "dist", "__pycache__"}
        everything = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
        listed = [str(path) for path in everything if private.isdisjoint(path.parts) and path.suffix != ".so"]
    return sorted(name for name in set(listed) if name and (ROOT / name).is_file())


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources without anything that was built from them."""
    folder = tmp_path_factory.mktemp("sources")
    for name in source_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def unpacked(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an unpacked sdist, made by the build backend of the environment that runs the tests."""
    folder = tmp_path_factory.mktemp("sdist")
    code = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    run([sys.executable, "-c", code, folder], cwd=sources)
    (archive,) = folder.glob("slipstream-*.tar.gz")
    shutil.unpack_archive(archive, folder)
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def build(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Interpreter], Path]:
    """Return a function that gives the wheel an interpreter builds in a new environment, each only once."""

    @functools.cache
    def wheel_of(python: Interpreter) -> Path:
        folder = tmp_path_factory.mktemp(f"wheel-{python.version}")
        environment, tree, out = folder / "environment", folder / "tree", folder / "wheels"
        run([python.path, "-m", "venv", environment])
        shutil.copytree(unpacked, tree)
        pip: list[str | Path] = [environment / "bin" / "python", "-m", "pip"]
        nice = ["nice", "-n", "10"] if shutil.which("nice") else []
        # PYTHONPATH and its like would let the isolated build see what it did not ask for
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        run([*nice, *pip, "wheel", "-q", "--no-deps", "--wheel-dir", out, "."], cwd=tree, env=pinned(env))
        (found,) = out.iterdir()
        return found

    return wheel_of


@pytest.fixture(scope="module", params=DECLARED)
def bare(
    request: pytest.FixtureRequest,
    build: Callable[[Interpreter], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Installed:
    """Return a new environment of that version with the wheel, installed without a compiler on PATH."""
    version: str = request.param
    python, maker = interpreter(version), builder(version)
    if python is None:
        pytest.skip(f"no CPython {version} with venv and ensurepip at hand")
    if maker is None:
        pytest.skip(f"no CPython with headers at hand to build the wheel for {version}")
    wheel = build(maker)
    folder = tmp_path_factory.mktemp(f"bare-{version}")
    run([python.path, "-m", "venv", folder])
    pip: list[str | Path] = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--only-binary=:all:"]
    run([*pip, wheel], env=pinned(without_compiler(folder / "bin")))
    return Installed(version, folder / "bin", wheel)


def test_running_version_is_among_those_tested() -> None:
    assert RUNNING in DECLARED
    assert interpreter(RUNNING) is not None


def test_sdist_holds_all_that_a_build_reads(sources: Path, unpacked: Path) -> None:
    needed = [name for name in source_files() if name.startswith(BUILD_INPUTS)]
    assert len(needed) > 100
    for name in needed:
        assert (unpacked / name).read_bytes() == (sources / name).read_bytes(), name


def test_wheel_declares_what_is_tested(bare: Installed) -> None:
    with zipfile.ZipFile(bare.wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    assert metadata["Requires-Python"] == f">={DECLARED[0]}"
    classifiers = metadata.get_all("Classifier", [])
    declared = [match[1] for one in classifiers if (match := re.search(r"Python :: (3\.\d+)$", one))]
    assert declared == DECLARED


def test_wheel_is_for_this_version_or_for_all_later_ones(bare: Installed) -> None:
    python, abi, _ = bare.wheel.stem.split("-")[2:]
    if minor(bare.version) >= minor(FIRST_STABLE):
        assert (python, abi) == ("cp312", "abi3")
    else:
        assert python == abi == "cp" + bare.version.replace(".", "")


def test_wheel_holds_the_package_and_nothing_else(bare: Installed) -> None:
    names = zipfile.ZipFile(bare.wheel).namelist()
    assert any(name.startswith("slipstream/_core.") and name.endswith(".so") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "slipstream/py.typed" in names
    outside = [name for name in names if not name.startswith(("slipstream/", "slipstream-"))]
    assert outside == []
    assert [name for name in names if name.endswith((".cpp", ".h", ".a", ".pyc"))] == []


def test_modules_need_no_cxx_runtime(bare: Installed, tmp_path: Path) -> None:
    with zipfile.ZipFile(bare.wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".so")]
        modules = [Path(archive.extract(name, tmp_path)).read_bytes() for name in names]
    assert len(names) == 2
    assert "slipstream/libslipstream_mpi.so" in names
    for data in modules:
        assert b"libc.so.6" in data
        assert b"libstdc++.so" not in data
        # a static copy aborts the process when the interpreter ends a thread of it
        assert b"libgcc_s.so.1" in data


def test_package_imports(bare: Installed, tmp_path: Path) -> None:
    code = "import sys, slipstream.comm, slipstream._core as core; print(*sys.version_info[:2]); print(core.__file__)"
    version, module = bare.run("python", "-W", "error", "-c", code, cwd=tmp_path).splitlines()
    assert version.replace(" ", ".") == bare.version
    assert Path(module).is_relative_to(bare.bin.parent)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_two_ranks_without_a_compiler(bare: Installed, transport: str, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    command: list[str | Path] = ["slipstream", "run", "-np", "2", "--", bare.bin / "python", script]
    printed = bare.run(*command, cwd=tmp_path, SLIPSTREAM_TRANSPORT=transport)
    for rank in range(2):
        assert f"sum is right on rank {rank} of Python 3 {minor(bare.version)}\n" in printed, printed


def test_check_finds_the_engine(bare: Installed, tmp_path: Path) -> None:
    found = {one["name"]: one for one in json.loads(bare.run("slipstream", "check", "--json", cwd=tmp_path))}
    assert found["engine"]["state"] == "ok"
    assert found["python"]["text"].startswith(f"{bare.version}.")
    assert "numpy" in found["frameworks"]["text"]
    assert "torch" not in found["frameworks"]["text"]


def test_command_starts_without_a_framework(bare: Installed, tmp_path: Path) -> None:
    code = "import sys, slipstream.cli.main; print(sorted({'torch', 'tensorflow', 'jax'} & set(sys.modules)))"
    assert bare.run("python", "-c", code, cwd=tmp_path).strip() == "[]"
