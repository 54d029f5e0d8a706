"""docs/wire.md against the structs and enumerations of the native code, and what Python packs by itself."""

from __future__ import annotations

import re

import pytest

from docs.commands import ROOT
from slipstream.base.protocol import PROTOCOL
from slipstream.comm.rendezvous import handshake

PAGE = (ROOT / "docs" / "wire.md").read_text()
SIZES = {"char": 1, "std::byte": 1, "uint8_t": 1, "uint16_t": 2, "uint32_t": 4, "uint64_t": 8}
Field = tuple[int, int, str]  # offset, bytes, name
ROW = re.compile(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", re.MULTILINE)


def source(path: str) -> str:
    return re.sub(r"//[^\n]*", "", (ROOT / path).read_text())


def body(kind: str, name: str) -> str:
    """Between the braces of a struct or an enumeration, in one of the files that the page names."""
    files = sorted({*re.findall(r"`(native/[\w/]+\.h)`", PAGE), "native/transport/tcp/checksums.h"})
    inside = r"([^}]*)\}" if kind == "enum class" else r"(.*?)^\}"
    pattern = re.compile(
        rf"\b{kind} (?:alignas\(\d+\) )?{name}\b[^;{{]*\{{{inside};", re.DOTALL | re.MULTILINE
    )
    (found,) = [match[1] for path in files if (match := pattern.search(source(path)))]
    return found


def size_of(kind: str) -> int:
    array = re.fullmatch(r"std::array<([\w:]+), (\d+)>", kind)
    if array:
        return size_of(array[1]) * int(array[2])
    if kind in SIZES:
        return SIZES[kind]
    if kind in ("Frame", "Check"):
        return sum(size for _, size, _ in fields(kind))
    (base,) = {
        match[1]
        for path in (ROOT / "native").rglob("*.h")
        if (match := re.search(rf"enum class {kind} : (\w+)", path.read_text()))
    }
    return SIZES[base]


def fields(name: str) -> list[Field]:
    """The members of a struct without padding: `static_assert` in its file holds its size to their sum."""
    found, at = [], 0
    for kind, member in re.findall(
        r"^  ([\w:]+(?:<[^;=>]+>)?) (\w+)\s*(?:=[^;]*|\{[^;]*\})?;", body("struct", name), re.M
    ):
        assert at % min(size_of(kind), 8) == 0 or "array" in kind or kind == "Check"
        found.append((at, size_of(kind), member))
        at += size_of(kind)
    return found


def enumerators(name: str) -> list[tuple[int, str]]:
    found = []
    for text in body("enum class", name).split(","):
        if "=" in text:
            member, value = (part.strip() for part in text.split("="))
            known = re.search(r"FrameType::(\w+)", value)
            number = {b: a for a, b in enumerators("FrameType")}[known[1]] if known else int(value)
            found.append((number, member))
    return found


def field_tables() -> dict[str, tuple[int, list[Field]]]:
    """By struct: the size that the page states, and its table."""
    pattern = r"(\d+) bytes, `(\w+)` in\s+`[\w/.]+`:\n\n((?:\|.*\n)+)"
    return {
        name: (
            int(size),
            [
                (int(a), int(b), c)
                for a, b, c in re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", rows, re.MULTILINE)
            ],
        )
        for size, name, rows in re.findall(pattern, PAGE)
    }


def enum_tables() -> dict[str, list[tuple[int, str]]]:
    found = re.findall(r"^\| `(\w+)` \| Name \|.*\n\|---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return {
        name: [(int(a), b) for a, b in re.findall(r"^\| (\d+) \| `(\w+)` \|", rows, re.MULTILINE)]
        for name, rows in found
    }


def test_the_page_has_tables() -> None:
    expected = {"Hello", "Frame", "WorkHeader", "ControlHeader", "LaneControl", "SegmentHeader"}
    assert set(field_tables()) == expected
    assert set(enum_tables()) == {"Purpose", "FrameType", "MessageType"}


@pytest.mark.parametrize("name", field_tables())
def test_fields_are_those_of_the_code(name: str) -> None:
    size, table = field_tables()[name]
    assert table == fields(name)
    assert size == sum(count for _, count, _ in table)


@pytest.mark.parametrize("name", enum_tables())
def test_numbers_are_those_of_the_code(name: str) -> None:
    assert enum_tables()[name] == enumerators(name)


def test_the_version_is_that_of_the_code() -> None:
    assert f"version {PROTOCOL} of the protocol" in PAGE
    table = re.findall(
        r"^\| ([\d.]+) \| (\d+) \|$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE
    )
    assert int(table[-1][1]) == PROTOCOL
    assert f'version = "{table[-1][0]}"' in (ROOT / "pyproject.toml").read_text()


def test_python_packs_the_same_hello() -> None:
    size, table = field_tables()["Hello"]
    assert size == handshake.HELLO_SIZE
    hello = handshake.Hello(
        handshake.PURPOSE_STORE, bytes(range(16)), 2, 3, 4, 5, bytes(32), encrypt=True
    ).pack()
    values = {name: hello[at : at + count] for at, count, name in table}
    assert values["magic"] == b"SLIP"
    assert values["job"] == bytes(range(16))
    numbers = {"version": PROTOCOL, "purpose": 1, "rank": 2, "target": 3, "lane": 4, "token": 5, "flags": 1}
    for name, number in numbers.items():
        assert int.from_bytes(values[name], "little") == number, name
    assert dict(enum_tables()["Purpose"])[handshake.PURPOSE_STORE] == "store"
