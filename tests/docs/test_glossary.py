"""The glossary of docs/architecture.md: each word names one thing in the code."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import pytest

from docs.commands import ROOT

PAGE = ROOT / "docs" / "architecture.md"
NATIVE_CLASS = re.compile(
    r"^\s*(?:class|struct|enum class|enum) (\w+)(?: final)?(?:\s*:[^;{]*)?\s*\{", re.MULTILINE
)
NATIVE_NAME = re.compile(r"[A-Za-z_]\w*")
NOT_CODE = re.compile(r"//[^\n]*|\"(?:\\.|[^\"\\\n])*\"")
PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

# Words of ours that no name may use for anything else: where names use them.
USED_IN = {
    "segment": ("native/transport/",),
    "piece": ("native/engine/",),
    "bucket": (
        *("src/slipstream/gradients/", "src/slipstream/faces/", "src/slipstream/bench/train/"),
        *("src/slipstream/cli/bench_train.py", "src/slipstream/torch/comm_hooks.py"),
    ),
    "knock": ("native/transport/", "native/engine/", "native/session/"),
    "verdict": ("native/reducers/",),
}
# PyTorch's own names, and TCP_MAXSEG.
FOREIGN = {"bucket_cap_mb", "GradBucket", "_SEGMENT"}


def rows() -> dict[str, list[str]]:
    """The files and folders of every word."""
    section = PAGE.read_text().partition("\n## Words\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (\*\*.*?) \| (.*?) \|(.*)\|$", section, re.MULTILINE)
    return {word: re.findall(r"`([^`]+)`", code) for words, _, code in found for word in bold(words)}


def bold(text: str) -> list[str]:
    return re.findall(r"\*\*(.+?)\*\*", text)


@cache
def sources() -> list[tuple[str, set[str], set[str]]]:
    """Path, classes and names of the files of both languages, tests left out."""
    return [(path, class_names(path, text), names(path, text)) for path, text in _texts()]


def _texts() -> Iterator[tuple[str, str]]:
    for folder in ("src", "native"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".h", ".cpp", ".inl"} and "tests" not in path.parts:
                yield path.relative_to(ROOT).as_posix(), path.read_text()


def class_names(path: str, text: str) -> set[str]:
    """Classes that are not private to a Python module."""
    if path.endswith(".py"):
        nodes = ast.walk(ast.parse(text))
        return {node.name for node in nodes if isinstance(node, ast.ClassDef) and node.name[0] != "_"}
    return set(NATIVE_CLASS.findall(text))


def names(path: str, text: str) -> set[str]:
    """All identifiers of a file."""
    if not path.endswith(".py"):
        return set(NATIVE_NAME.findall(NOT_CODE.sub("", text)))
    found = set()
    for node in ast.walk(ast.parse(text)):
        for field in ("name", "id", "attr", "arg"):
            value = getattr(node, field, None)
            found |= {value} if isinstance(value, str) else set()
    return found


def uses(name: str, word: str) -> bool:
    """Whether a part of an identifier is the word, or its plural."""
    return bool({word, word + "s"} & {part.lower() for part in PART.findall(name)})


def test_the_glossary_has_rows() -> None:
    found = rows()
    assert {"segment", "lane", "piece", "acknowledgement", "sender", "receiver", "bucket"} <= set(found)
    assert set(USED_IN) <= set(found)


def test_what_the_glossary_names_exists() -> None:
    missing = [path for paths in rows().values() for path in paths if not (ROOT / path).exists()]
    assert missing == []


def test_a_word_names_one_class() -> None:
    """A class called like a word is in a file, or below a folder, of the word's row."""
    defined = defaultdict(set)
    for path, classes, _ in sources():
        for name in classes:
            defined[name].add(path)
    assert "Segment" in defined
    assert "Lane" in defined
    wrong = []
    for word, places in rows().items():
        name = "".join(part.capitalize() for part in word.split())
        for path in defined[name] | defined[name + "s"]:
            if not path.startswith(tuple(places)):
                wrong.append(f"{path}: class {name} is not what the glossary calls a {word}")
    assert wrong == []


@pytest.mark.parametrize("word", sorted(USED_IN))
def test_names_use_our_words_for_nothing_else(word: str) -> None:
    wrong = [
        f"{path}: {name}"
        for path, _, found in sources()
        if not path.startswith(USED_IN[word])
        for name in sorted(found - FOREIGN)
        if uses(name, word)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "word", "expected"),
    [
        ("SegmentWriter", "segment", True),
        ("kSegments", "segment", True),
        ("first_segment_", "segment", True),
        ("segmentation", "segment", False),
        ("peer", "piece", False),
    ],
)
def test_a_use_is_seen(name: str, word: str, expected: bool) -> None:
    assert uses(name, word) is expected


def test_a_class_is_seen() -> None:
    assert class_names("a.h", "struct Lane final : public Handler {\n  enum class Place { a };\n") == {
        "Lane",
        "Place",
    }
    assert class_names("a.h", "struct Lane;\n// class Piece is\n") == set()
    assert class_names("a.py", "class Segment:\n    class _Inner: ...\n") == {"Segment"}
