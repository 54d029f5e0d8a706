"""docs/settings.md has a row for every variable that slipstream reads, with its default and its option."""

from __future__ import annotations

import dataclasses
import re

import click

from docs.commands import ROOT
from slipstream.base.settings import PREFIX, Settings, variables
from slipstream.cli.main import run

PAGE = ROOT / "docs" / "settings.md"
NAMED = re.compile(r"""["'](SLIPSTREAM_[A-Z_]*[A-Z])["']""")


def rows() -> dict[str, list[str]]:
    """By variable: default, meaning and options."""
    found = re.findall(r"^\| `(SLIPSTREAM_\w+)` \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    assert len({name for name, _ in found}) == len(found)
    return {name: [cell.strip() for cell in cells.split(" | ")] for name, cells in found}


def named() -> set[str]:
    """The variables that the code reads or sets by their names; `Settings` makes the names of those it reads."""
    sources = [*(ROOT / "src").rglob("*.py")]
    sources += [path for path in (ROOT / "native").rglob("*.[ch]*") if "tests" not in path.parts]
    return {name for path in sources for name in NAMED.findall(path.read_text())}


def test_every_variable_has_a_row_and_every_row_a_variable() -> None:
    assert set(rows()) == set(variables())
    assert {"SLIPSTREAM_REPORT", "SLIPSTREAM_CPU"} <= named() <= set(variables())


def test_defaults_are_those_of_the_code() -> None:
    page = rows()
    for field in dataclasses.fields(Settings):
        default = page[PREFIX + field.name.upper()][0].strip("`")
        meant = [field.metadata["parse"](default)] if default else [None, ()]
        assert field.default in meant, field.name


def test_options_are_named_in_the_row_of_their_variable() -> None:
    options = {one.name: one.opts for one in run.params if isinstance(one, click.Option)}
    known = {opt for opts in options.values() for opt in opts}
    for name, (_, _, given) in rows().items():
        named = re.findall(r"`(-[^`]+)`", given)
        assert {"-v" if one == "-vv" else one for one in named} <= known, name
        stands = options.get(name.removeprefix(PREFIX).lower())
        if stands is not None:
            assert set(named) & set(stands), name


def test_the_page_is_linked() -> None:
    assert "(docs/settings.md)" in (ROOT / "README.md").read_text()
    assert "docs/settings.md" in (run.epilog or "")
