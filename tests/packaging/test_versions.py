"""The version of the package and that of the protocol move together, and each is stated once."""

from __future__ import annotations

import re
from pathlib import Path

from slipstream.base.protocol import PROTOCOL

ROOT = Path(__file__).resolve().parents[2]


# What stands in the table above its last row. It is written twice, so that a new protocol is not put into an old row.
PAST = {"0.1.0": 1, "0.2.0": 3, "0.3.0": 4}


def table() -> dict[str, int]:
    """The protocol of each package version, as docs/architecture.md lists them."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = text.partition("| package version | protocol version |\n")[2].partition("\n\n")[0]
    found = re.findall(r"^\| (\d+\.\d+\.\d+) \| (\d+) \|$", rows, re.MULTILINE)
    assert len(found) == rows.count("\n")  # all but the line below the heading
    assert len(dict(found)) == len(found), "a version of the package has one protocol"
    return {package: int(protocol) for package, protocol in found}


def test_a_new_protocol_needs_a_new_package_version() -> None:
    (package,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert table().get(package) == PROTOCOL, (
        f"slipstream {package} speaks protocol version {PROTOCOL}, the table of docs/architecture.md says "
        f"{table().get(package)}: raise the version in pyproject.toml and add a row"
    )


def test_versions_only_rise_and_what_was_stays() -> None:
    packages = [tuple(map(int, package.split("."))) for package in table()]
    assert packages == sorted(packages)
    assert list(table().values()) == sorted(table().values())
    *past, _ = table().items()
    assert dict(past) == PAST


def test_the_changelog_names_the_protocol() -> None:
    assert f"Protocol version {PROTOCOL}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_handshakes_page_and_the_native_code_have_no_number_of_their_own() -> None:
    assert (
        f"This page describes version {PROTOCOL} of the protocol." in (ROOT / "docs" / "wire.md").read_text()
    )
    header = (ROOT / "native" / "transport" / "handshake.h").read_text()
    assert "uint16_t version = kProtocolVersion;" in header
