"""The layer orders of docs/architecture.md, checked on the sources themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "native"
PACKAGE = ROOT / "src" / "slipstream"

# folder -> what it may include besides itself
NATIVE_LAYERS: dict[str, set[str]] = {
    "base": set(),
    "kernels": {"base"},
    "transport": {"base"},
    "engine": {"base", "kernels", "transport"},
    "session": {"base", "kernels", "transport", "engine"},
    "bindings": {"base", "kernels", "transport", "engine", "session"},
    "tests": {"base", "kernels", "transport", "engine", "session"},
}

# low to high; a package imports itself and what stands before it
PYTHON_LAYERS = [
    "_core",
    "base",
    "plan",
    "comm",
    "observe",
    "reducer",
    "faces",
    "launch",
    "lab",
    "bench",
    "cli",
]
SIBLINGS = {"lab", "bench"}  # they never meet
FRAMEWORKS = {"torch", "tensorflow", "keras", "jax", "mxnet"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)


def native_violations(folder: str, text: str) -> list[str]:
    """Return what is wrong with the includes of `text`, a file of native/`folder`."""
    wrong = []
    for quote, target in INCLUDE.findall(text):
        layer = target.split("/")[0]
        if quote == "<":
            if layer in NATIVE_LAYERS and "/" in target:
                wrong.append(f"<{target}> is ours: write it in quotes")
            if (target == "Python.h" or layer == "nanobind") and folder != "bindings":
                wrong.append(f"<{target}> belongs to bindings alone")
        elif "/" not in target:
            wrong.append(f'"{target}" must be written from native/')
        elif layer != folder and layer not in NATIVE_LAYERS[folder]:
            wrong.append(f'"{target}" is not below {folder}')
    return wrong


def imported_modules(text: str, package: str) -> Iterator[str]:
    """Yield absolute names of all that `text`, a module of the dotted `package`, imports, at any depth."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            start = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (start, node.module or "") if part)
            yield module
            # `from slipstream import comm` names a layer only by what it imports
            yield from (f"{module}.{alias.name}" for alias in node.names)


def python_violations(layer: str, text: str, package: str) -> list[str]:
    """Return the imports of `text` that `layer` may not have."""
    allowed = PYTHON_LAYERS[: PYTHON_LAYERS.index(layer) + 1]
    if layer in SIBLINGS:
        allowed = [name for name in allowed if name == layer or name not in SIBLINGS]
    wrong = []
    for name in imported_modules(text, package):
        parts = name.split(".")
        if parts[0] == "slipstream" and len(parts) > 1:
            target = "faces" if parts[1] in FRAMEWORKS else parts[1]
            if target in PYTHON_LAYERS and target not in allowed:
                wrong.append(f"{name} is not below {layer}")
            if layer in {"launch", "lab", "cli"} and target == "faces":
                wrong.append(f"{name}: the launcher starts without any framework")
        elif parts[0] in FRAMEWORKS and layer in {"base", "plan", "launch", "lab", "cli"}:
            wrong.append(f"{name}: {layer} knows no framework")
    return wrong


def native_files() -> list[Path]:
    return sorted(path for path in NATIVE.rglob("*") if path.suffix in {".h", ".cpp"})


def python_files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE)


def test_native_includes_go_down() -> None:
    files = native_files()
    assert len(files) > 10
    wrong = []
    for path in files:
        name = path.relative_to(NATIVE)
        assert name.parts[0] in NATIVE_LAYERS, f"{name}: a folder no layer order knows"
        wrong += [f"native/{name}: {text}" for text in native_violations(name.parts[0], path.read_text())]
    assert not wrong, "\n".join(wrong)


def test_python_imports_go_down() -> None:
    files = python_files()
    assert len(files) > 10
    wrong = []
    for path in files:
        name = path.relative_to(PACKAGE)
        layer = name.parts[0]
        if layer in FRAMEWORKS:
            layer = "faces"  # slipstream.torch is only the public path of slipstream.faces.torch
        assert layer in PYTHON_LAYERS, f"{name}: a package no layer order knows"
        package = ".".join(("slipstream", *name.parts[:-1]))
        wrong += [f"{name}: {text}" for text in python_violations(layer, path.read_text(), package)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("folder", "line", "good"),
    [
        ("kernels", '#include "base/error.h"', True),
        ("kernels", '#include "kernels/table.h"', True),
        ("kernels", '#include "transport/link.h"', False),
        ("transport", '#  include "kernels/reduce.h"', False),
        ("engine", '#include "transport/link.h"', True),
        ("engine", '#include "session/work.h"', False),
        ("base", '#include "error.h"', False),
        ("session", "#include <nanobind/nanobind.h>", False),
        ("bindings", "#include <nanobind/nanobind.h>", True),
        ("session", "#include <engine/executor.h>", False),
        ("base", "#include <sys/socket.h>", True),
    ],
)
def test_native_rule(folder: str, line: str, good: bool) -> None:
    assert (native_violations(folder, f"// first\n{line}\n") == []) is good


@pytest.mark.parametrize(
    ("layer", "line", "good"),
    [
        ("comm", "from slipstream.plan import ring", True),
        ("comm", "from ..base.errors import Timeout", True),
        ("comm", "from .. import launch", False),
        ("plan", "import slipstream.comm", False),
        ("plan", "from slipstream import faces", False),
        ("launch", "def f():\n    import slipstream.torch", False),
        ("launch", "import torch", False),
        ("bench", "from slipstream.launch import hosts", True),
        ("bench", "from slipstream.lab import Lab", False),
        ("faces", "import torch", True),
        ("base", "from slipstream._core import DType", True),
    ],
)
def test_python_rule(layer: str, line: str, good: bool) -> None:
    assert (python_violations(layer, line, f"slipstream.{layer}") == []) is good
