"""The distribution slipstream-horovod: built and installed without a network, it gives `horovod` and `horovodrun`."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "packages" / "slipstream-horovod"
SCRIPT = "import horovod.common.exceptions, horovod; print(horovod.__file__, horovod.__version__)"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what pip installs of it."""
    pytest.importorskip("pip")
    folder = tmp_path_factory.mktemp("site")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
    ]
    done = subprocess.run(
        [*pip, "--target", str(folder), str(PACKAGE)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_its_command_runs_a_job_that_finds_its_package(site: Path) -> None:
    paths = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
    run = {"capture_output": True, "text": True, "timeout": 60, "env": os.environ | {"PYTHONPATH": paths}}
    command = [str(site / "bin" / "horovodrun"), "-np", "2", sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, check=False, **run)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert all(line.endswith(" 0.28.1") for line in done.stdout.splitlines())
    done = subprocess.run([sys.executable, "-c", SCRIPT], check=True, **run)  # type: ignore[call-overload]
    assert done.stdout == f"{site / 'horovod' / '__init__.py'} 0.28.1\n"


def test_it_holds_no_copy_and_needs_slipstream(site: Path) -> None:
    (found,) = importlib.metadata.distributions(name="slipstream-horovod", path=[str(site)])
    modules = [file for file in found.files or [] if file.suffix == ".py"]
    assert [str(file) for file in modules] == ["horovod/__init__.py"]
    body = ast.parse((site / "horovod" / "__init__.py").read_text()).body
    assert len(body) == 3  # what it is, an import and a call
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found.version == version
    assert found.requires == [f"slipstream>={version}"]


def test_the_sources_can_be_packed(tmp_path: Path) -> None:
    """As an archive, from which pip builds the same."""
    code = f"import packing; print(packing.build_sdist({str(tmp_path)!r}), packing.build_wheel({str(tmp_path)!r}))"
    names = subprocess.check_output([sys.executable, "-B", "-c", code], cwd=PACKAGE, text=True).split()
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
    ]
    again = tmp_path / "again"
    subprocess.run([*pip, "-w", str(again), str(tmp_path / names[0])], check=True, timeout=120)
    assert (again / names[1]).read_bytes() == (tmp_path / names[1]).read_bytes()
