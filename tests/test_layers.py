"""The layer orders of docs/architecture.md, checked on the sources themselves."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
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
    "boards": {"base", "kernels", "transport", "engine"},
    "session": {"base", "kernels", "transport", "engine", "boards"},
    "capi": {"base", "kernels", "transport", "engine", "boards", "session"},
    "xla": {"capi"},
    "lines": {"base", "capi"},
    "tensorflow": {"base", "capi", "lines"},
    "mxnet": {"base", "capi", "lines"},
    "lightgbm": {"base", "capi"},
    "reducers": {"base", "kernels", "transport", "engine", "boards", "session"},
    "bindings": {"base", "kernels", "transport", "engine", "boards", "session", "reducers"}
    | {"capi", "xla", "lines", "tensorflow", "mxnet", "lightgbm"},
    "mpi_trampoline": {"base", "kernels", "capi"},
    "tests": {
        "base",
        "kernels",
        "transport",
        "engine",
        "boards",
        "session",
        "capi",
        "reducers",
        "lines",
        "tensorflow",
    },
}
# what stands side by side in native/transport: each includes what they share, which includes none of them
TRANSPORTS = {"tcp", "shm", "memory"}

# low to high; a package imports itself and what stands before it. Packages of one layer never meet.
PYTHON_LAYERS = [
    {"_core"},
    {"base"},
    {"plan"},
    {"comm"},
    {"observe"},
    {"reducer", "gradients", "staging"},
    {"faces"},
    {"torch", "keras", "tf_keras", "jax", "mpi4jax", "lightgbm", "ray", "mxnet"},
    {"tensorflow"},
    {"launch"},
    {"lab", "bench"},
    {"cli"},
    {"as_horovod", "as_jax", "as_mpi4jax"},
]
# the same within a package: its folders and modules
ROOMS = {
    "comm": [
        {"rendezvous", "measuring"},
        {"reducers"},
        {"tuning"},
        {"membership"},
        {"collectives"},
        {"negotiation"},
    ],
    "faces": [
        {"horovod", "mpi", "torch_steps", "torch_tensors"},
        {"arrays"},
        {
            *("torch", "torch_distributed", "tensorflow", "keras", "jax", "mpi_trampoline"),
            *("lightgbm", "ray", "mxnet"),
        },
    ],
}
# what the modules beside the packages import when they are loaded
TOP_MODULES = {"__init__": {"base", "comm"}, "__main__": {"cli"}}
FRAMEWORKS = {"torch", "tensorflow", "keras", "tf_keras", "jax", "mxnet", "lightgbm", "ray"}
WITHOUT_FRAMEWORK = {
    *("base", "plan", "comm", "observe", "reducer", "gradients", "staging", "launch", "lab", "cli"),
    *("faces.horovod", "faces.mpi", "faces.arrays", "faces.mpi_trampoline"),
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)


def native_violations(folder: str, text: str) -> list[str]:
    """Return what is wrong with the includes of `text`, a file of native/`folder` ("engine", "transport/tcp")."""
    wrong = []
    folder, _, kind = folder.partition("/")
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
        elif folder == "transport" and layer == folder:
            other = target.split("/")[1]
            if other in TRANSPORTS and other != kind:
                wrong.append(f'"{target}" is not below transport/{kind}')
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


def allowed_in(place: str, order: list[set[str]]) -> set[str]:
    """Return what `place` may import of those in `order`."""
    height = next(i for i, level in enumerate(order) if place in level)
    return {place}.union(*order[:height])


def python_violations(module: str, text: str) -> list[str]:
    """Return the imports of `text` that `module`, such as comm.membership.job, may not have."""
    layer, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    allowed = allowed_in(layer, PYTHON_LAYERS)
    rooms = ROOMS.get(layer, [])
    is_room = any(room in level for level in rooms)
    free = layer in WITHOUT_FRAMEWORK or f"{layer}.{room}" in WITHOUT_FRAMEWORK
    package = f"slipstream.{module}".rpartition(".")[0]
    wrong = []
    for name in imported_modules(text, package):
        parts = name.split(".")
        if parts[0] in FRAMEWORKS and free:
            wrong.append(f"{name}: {layer} knows no framework")
        if parts[0] != "slipstream" or len(parts) == 1:
            continue
        target = parts[1]
        if target not in allowed and target in set().union(*PYTHON_LAYERS):
            wrong.append(f"{name} is not below {layer}")
        if layer in {"launch", "lab", "cli"} and target in {"faces", *FRAMEWORKS}:
            wrong.append(f"{name}: the launcher starts without any framework")
        if target == layer and is_room and len(parts) > 2:
            known = parts[2] in set().union(*rooms)
            if known and parts[2] not in allowed_in(room, rooms):
                wrong.append(f"{name} is not below {layer}.{room}")
    return wrong


def top_violations(module: str, text: str) -> list[str]:
    """Return the imports of `text`, a module beside the packages, that it may not have when it is loaded."""
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if not _for_type_checkers(node)]
    layers = set().union(*PYTHON_LAYERS, FRAMEWORKS)
    found = imported_modules(ast.unparse(tree), "slipstream")
    targets = [(name, name.split(".")[1]) for name in found if name.startswith("slipstream.")]
    return [
        f"{name}: {module} does not load it"
        for name, target in targets
        if target in layers and target not in TOP_MODULES[module]
    ]


def _for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def native_files() -> list[Path]:
    return sorted(path for path in NATIVE.rglob("*") if path.suffix in {".h", ".cpp"})


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_native_includes_go_down() -> None:
    files = native_files()
    assert len(files) > 10
    wrong = []
    for path in files:
        name = path.relative_to(NATIVE)
        assert name.parts[0] in NATIVE_LAYERS, f"{name}: a folder no layer order knows"
        folder = name.parent.as_posix()
        wrong += [f"native/{name}: {text}" for text in native_violations(folder, path.read_text())]
    assert not wrong, "\n".join(wrong)


def test_transport_stands_alone() -> None:
    text = (NATIVE / "tests" / "transport_alone_test.cpp").read_text()
    ours = {target for quote, target in INCLUDE.findall(text) if quote == '"'} - {"tests/check.h"}
    assert ours
    assert {target.split("/")[0] for target in ours} <= {"base", "transport"}


def test_python_imports_go_down() -> None:
    files = python_files()
    assert len(files) > 10
    wrong = []
    for path in files:
        name = path.relative_to(PACKAGE)
        module = ".".join(name.with_suffix("").parts)
        if len(name.parts) == 1:
            assert module in TOP_MODULES, f"{name}: a module no layer order knows"
            found = top_violations(module, path.read_text())
        else:
            layer = name.parts[0]
            assert any(layer in level for level in PYTHON_LAYERS), f"{name}: a package no layer order knows"
            found = python_violations(module, path.read_text())
        wrong += [f"{name}: {text}" for text in found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", sorted(ROOMS))
def test_every_room_has_its_place(package: str) -> None:
    found = {path.stem for path in (PACKAGE / package).iterdir() if path.stem[0] != "_"}
    assert found == set().union(*ROOMS[package])


def test_what_faces_share_loads_no_framework() -> None:
    faces = PACKAGE / "faces"
    shared = [PACKAGE / "gradients", PACKAGE / "staging", faces / "horovod", faces / "arrays"]
    names = [
        ".".join(("slipstream", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        for folder in shared
        for path in sorted(folder.glob("*.py"))
    ]
    assert len(names) > 15
    code = f"import sys, {', '.join(names)}; print(sorted({FRAMEWORKS!r} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize(
    ("folder", "line", "good"),
    [
        ("kernels", '#include "base/error.h"', True),
        ("kernels", '#include "kernels/table.h"', True),
        ("kernels", '#include "transport/link.h"', False),
        ("transport", '#  include "kernels/reduce.h"', False),
        ("engine", '#include "transport/link.h"', True),
        ("engine", '#include "transport/tcp/transport.h"', True),
        ("transport", '#include "transport/tcp/lane.h"', False),
        ("transport/shm", '#include "transport/tcp/lane.h"', False),
        ("transport/tcp", '#include "transport/tcp/lane.h"', True),
        ("transport/tcp", '#include "transport/link.h"', True),
        ("transport/tcp", '#include "engine/work.h"', False),
        ("engine", '#include "session/work.h"', False),
        ("session", '#include "reducers/client.h"', False),
        ("reducers", '#include "session/session.h"', True),
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
    ("module", "line", "good"),
    [
        ("comm.membership.job", "from slipstream.plan import ring", True),
        ("comm.errors", "from ..base.errors import Timeout", True),
        ("comm.errors", "from .. import launch", False),
        ("plan.ring", "import slipstream.comm", False),
        ("plan.ring", "from slipstream import faces", False),
        ("launch.agent", "def f():\n    import slipstream.torch", False),
        ("launch.agent", "import torch", False),
        ("bench.collective.meter", "from slipstream.launch import hosts", True),
        ("bench.collective.meter", "from slipstream.lab import Lab", False),
        ("faces.torch.state", "import torch", True),
        ("base.dtypes", "from slipstream._core import DType", True),
        ("comm.membership.job", "from slipstream.comm.rendezvous import join", True),
        ("comm.membership.job", "from ..collectives import arrays", False),
        ("comm.membership.job", "from slipstream.comm.collectives.arrays import send", False),
        ("gradients.exchange", "from slipstream.comm.collectives import addresses", True),
        ("gradients.exchange", "from slipstream.staging import calls", False),
        ("gradients.exchange", "from slipstream.faces import torch_tensors", False),
        ("gradients.exchange", "def f():\n    import jax", False),
        ("staging.stager", "import torch", False),
        ("faces.horovod.job", "from slipstream.faces.torch import state", False),
        ("faces.horovod.job", "import torch", False),
        ("faces.torch.state", "from slipstream.faces.horovod.job import rank", True),
        ("faces.torch.state", "from slipstream.faces.torch_distributed import group", False),
        ("faces.torch.state", "import slipstream.torch", False),
        ("faces.arrays.starting", "import tensorflow", False),
        ("faces.horovod.job", "from slipstream.faces.arrays import starting", False),
        ("faces.keras.optimizer", "from slipstream.faces.arrays import starting", True),
        ("faces.keras.optimizer", "from slipstream.faces.tensorflow import bridge", False),
        ("tensorflow.elastic", "from slipstream.keras import elastic", True),
        ("keras.elastic", "from slipstream.tensorflow import elastic", False),
        ("torch.elastic", "from slipstream.torch import allreduce", True),
        ("torch.elastic", "from slipstream.launch import hosts", False),
    ],
)
def test_python_rule(module: str, line: str, good: bool) -> None:
    assert (python_violations(module, line) == []) is good


@pytest.mark.parametrize(
    ("module", "text", "good"),
    [
        ("__init__", "from slipstream.base import errors", True),
        ("__init__", "from slipstream.observe import timeline", False),
        ("__init__", "from slipstream import launch", False),
        ("__init__", "if TYPE_CHECKING:\n    from slipstream.observe import timeline", True),
        ("__main__", "from slipstream.cli.entry import main", True),
        ("__main__", "from .bench import rank", False),
    ],
)
def test_top_rule(module: str, text: str, good: bool) -> None:
    assert (top_violations(module, text) == []) is good
