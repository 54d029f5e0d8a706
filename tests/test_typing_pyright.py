"""What pyright, the type checker of editors, sees of a user's script.

Nothing installs it for these tests: basedpyright and its Node.js take 250 MB. Where it is installed it runs, without
a network.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from test_typing import RIGHT, WRONG

RULES = {
    "attr-defined": "reportAttributeAccessIssue",
    "call-arg": "reportCallIssue",
    "arg-type": "reportArgumentType",
}


def pyright() -> list[str]:
    """The command. The package `pyright` of PyPI is no good here: it loads Node.js from the network when it runs."""
    if importlib.util.find_spec("basedpyright") is not None:
        return [sys.executable, "-m", "basedpyright"]
    found = shutil.which("pyright") if importlib.util.find_spec("pyright") is None else None
    if found is None:
        pytest.skip("no pyright: pip install basedpyright")
    return [found]


def errors(folder: Path, text: str) -> list[tuple[int, str]]:
    """Line, from 1, and rule of each error that pyright finds in the script ``text``, in its strict mode."""
    script = folder / "train.py"
    script.write_text(text)
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = [*pyright(), "--outputjson", "--pythonpath", sys.executable, "--project", str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["generalDiagnostics"]
    return [(one["range"]["start"]["line"] + 1, one["rule"]) for one in found if one["severity"] == "error"]


def test_pyright_accepts_right_uses_and_finds_wrong_ones(tmp_path: Path) -> None:
    first = RIGHT.count("\n") + 2
    expected = {(first + i, RULES[kind]) for i, kind in enumerate(WRONG.values())}
    found = set(errors(tmp_path, "\n".join([RIGHT, *WRONG])))
    assert expected <= found
    assert {line for line, _ in found} == {line for line, _ in expected}  # what else follows from these
