"""docs/reducers.md shows what the command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from slipstream.bench.page import replace_between
from slipstream.cli.main import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reducers.md"


def printed(page: str) -> str:
    """What the page's command prints, as Markdown."""
    command = re.search(r"^    slipstream (plan reducers --workers .*)$", page, re.MULTILINE)
    assert command is not None
    result = CliRunner().invoke(main, shlex.split(command[1]))
    assert result.exit_code == 0
    return result.output.strip()


def test_the_example_is_what_the_command_prints() -> None:
    page = PAGE.read_text()
    assert replace_between(page, "plan", printed(page)) == page


def test_there_is_a_place_for_measurements() -> None:
    assert "figures" in replace_between(PAGE.read_text(), "reducers", "figures")


def test_the_numbers_in_the_text_are_those_of_the_command() -> None:
    page = PAGE.read_text()
    command = re.search(r"^    slipstream (plan reducers --workers .*)$", page, re.MULTILINE)
    assert command is not None
    result = CliRunner().invoke(main, [*shlex.split(command[1]), "--overlap", "0.7"])
    best = re.search(r"^\| (\d+) .* cheapest +\|$", result.output, re.MULTILINE)
    most = re.search(r"^\| (\d+) .* fastest +\|$", result.output, re.MULTILINE)
    assert best is not None
    assert most is not None
    assert f"{best[1]} reducers\nare cheaper than {most[1]}" in page
