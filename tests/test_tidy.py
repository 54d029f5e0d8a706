"""House rules that no linter knows: sizes, names, docstrings, and a README that tells the truth."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["src", "native", "tests", "examples", "benchmarks", "docs", "deploy", "cmake", ".ci", "packages"]
SUFFIXES = {".py", ".pyi", ".cpp", ".h", ".cmake", ".md", ".toml", ".txt", ".yaml", ".sh", ".service", ""}
CODE = {".py", ".cpp", ".h", ".cmake"}
BANNED_NAMES = {"utils", "util", "helpers", "helper", "misc", "common"}
MAX_LINES = 600
MAX_FUNCTION_LINES = 70
# written in pieces, so that this file passes its own test
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}/:-])/(?:work|root|home|Users|opt|mnt)/[\w.-]+")


def files() -> list[Path]:
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        found += (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return sorted(
        path
        for path in found
        if path.suffix in SUFFIXES and "__pycache__" not in path.parts and path.name != ".git"
    )


def code_files() -> list[Path]:
    return [path for path in files() if path.suffix in CODE]


def undocumented(tree: ast.Module) -> list[str]:
    """Return the public functions, classes and methods of a module that have no docstring."""
    found = []
    nodes: list[tuple[str, ast.AST]] = [("", tree)]
    while nodes:
        prefix, parent = nodes.pop()
        for node in ast.iter_child_nodes(parent):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if node.name.startswith("_"):
                continue
            decorators = {ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list}
            if decorators & {"overload", "setter", "override"}:
                continue
            if ast.get_docstring(node) is None:
                found.append(f"{prefix}{node.name} (line {node.lineno})")
            if isinstance(node, ast.ClassDef):
                nodes.append((f"{prefix}{node.name}.", node))
    return found


def long_functions(tree: ast.Module) -> list[str]:
    """Return functions of more than MAX_FUNCTION_LINES lines, docstring not counted."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            lines = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            if lines > MAX_FUNCTION_LINES:
                found.append(f"{node.name} (line {node.lineno}): {lines} lines")
    return found


def python_sources() -> list[Path]:
    found = sorted((ROOT / "src").rglob("*.py"))
    assert len(found) > 10
    return found


def test_no_file_is_too_long() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in code_files()}
    assert sizes
    wrong = [f"{path.relative_to(ROOT)}: {lines} lines" for path, lines in sizes.items() if lines > MAX_LINES]
    assert not wrong, "\n".join(wrong)


def test_names_say_what_is_inside() -> None:
    wrong = []
    for path in code_files():
        names = {part.lower() for part in path.relative_to(ROOT).with_suffix("").parts}
        if "stand_ins" in names:  # the names of other people's modules
            continue
        if names & BANNED_NAMES:
            wrong.append(str(path.relative_to(ROOT)))
    assert not wrong, "\n".join(wrong)


def test_nothing_is_left_unfinished() -> None:
    wrong = []
    for path in files():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if UNFINISHED.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not wrong, "\n".join(wrong)


def test_no_path_of_one_machine() -> None:
    wrong = []
    for path in files():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if MACHINE_PATH.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not wrong, "\n".join(wrong)


def test_public_functions_have_docstrings() -> None:
    wrong = []
    for path in python_sources():
        if any(part.startswith("_") and part != "__init__.py" for part in path.relative_to(ROOT).parts):
            continue
        wrong += [f"{path.relative_to(ROOT)}: {name}" for name in undocumented(ast.parse(path.read_text()))]
    assert not wrong, "\n".join(wrong)


def test_functions_fit_in_the_head() -> None:
    wrong = []
    for path in python_sources():
        wrong += [f"{path.relative_to(ROOT)}: {name}" for name in long_functions(ast.parse(path.read_text()))]
    assert not wrong, "\n".join(wrong)


def test_bindings_keep_to_the_stable_abi() -> None:
    """Macros that look into Python's objects are not part of it: with Python 3.12 and later nothing would compile."""
    macro = re.compile(r"\bPy[A-Z][A-Za-z]*_(?:GET|SET|AS|IS|CHECK|READ|MAX)_[A-Z_]+\b")
    bindings = [*(ROOT / "native" / "bindings").rglob("*.h"), *(ROOT / "native" / "bindings").rglob("*.cpp")]
    texts = {path.name: path.read_text(encoding="utf-8") for path in bindings}
    found = {f"{name}: {one}" for name, text in texts.items() for one in macro.findall(text)}
    assert bindings
    assert not found, f"use functions in place of macros: {sorted(found)}"


def test_readme_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"(?:`|^    |^)make ([a-z-]+)", (ROOT / name).read_text(), re.MULTILINE))
        assert named, f"{name} names no command"
        assert named <= targets, f"{name}: no such target: {sorted(named - targets)}"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / name).read_text())
    wrong = [link for link in links if not (ROOT / link).exists()]
    assert links
    assert not wrong, f"{name} points at nothing: {wrong}"


def test_files_that_contributors_are_to_read_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:src|native|tests|benchmarks|docs)/[\w./]+)`", text)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []
    for walk in re.findall(r"\n## The way of one [^\n]*\n(.*?)\n## ", text, re.DOTALL):
        assert len(re.findall(r"^\d+\. `", walk, re.MULTILINE)) <= 12


def test_readme_tree_is_the_tree() -> None:
    text = (ROOT / "README.md").read_text()
    block = re.search(r"## The tree\n+```\n(.*?)```", text, re.DOTALL)
    assert block is not None
    named = re.findall(r"^([\w./]+/)\s", block.group(1), re.MULTILINE)
    assert named
    wrong = [folder for folder in named if not (ROOT / folder).is_dir()]
    assert not wrong, f"README's tree names folders that are not there: {wrong}"


def test_every_dependency_is_explained() -> None:
    section = re.search(
        r"^dependencies = .*?^\[project\.scripts\]",
        (ROOT / "pyproject.toml").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert section is not None
    names = set(re.findall(r'"([a-z][a-z0-9-]*)[">=]', section.group()))
    assert {"numpy", "torch", "ruff"} <= names
    explained = (ROOT / "docs" / "dependencies.md").read_text()
    wrong = [name for name in sorted(names) if f"| {name} |" not in explained]
    assert not wrong, f"docs/dependencies.md says nothing of {wrong}"


def test_the_rules_bite() -> None:
    tree = ast.parse(
        "class A:\n    '''A.'''\n    def f(self): ...\n    def _g(self): ...\ndef h():\n    '''H.'''\n"
    )
    assert undocumented(tree) == ["A.f (line 3)"]
    body = "\n".join("    x = 1" for _ in range(MAX_FUNCTION_LINES + 1))
    assert len(long_functions(ast.parse(f"def f():\n{body}\n"))) == 1
    assert MACHINE_PATH.search("see /" + "home/someone/file")
    assert not MACHINE_PATH.search("native/base/error.h, https://example.org/home/x")
    assert UNFINISHED.search("# TO" + "DO later")
