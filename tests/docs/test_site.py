"""The documentation as a site, and the pages that quote the sources."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.commands import ROOT


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Strict: a link that leads nowhere, an anchor that is not there, a page outside the navigation."""
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    commands = (tmp_path / "reference" / "commands.html").read_text()
    assert "--start-timeout" in commands
    assert "reduce_scatter" in (tmp_path / "reference" / "python.html").read_text()


def test_messages_of_the_troubleshooting_page_exist() -> None:
    """Each message is in the sources, but for how strings are broken into lines and where variables stand."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    table = re.findall(r"^\| (?:\"[^|]*\" (?:\.\.\. )?\| )?(`[^|]*) \|", page, re.MULTILINE)
    messages = [part for cell in table for part in re.findall(r"`([^`]+)`", cell)]
    assert len(messages) > 10
    sources = [path for folder in ("src", "native") for path in (ROOT / folder).rglob("*.*")]
    text = "".join(
        p.read_text() for p in sources if p.suffix in {".py", ".h", ".cpp"} and "tests" not in p.parts
    )
    text = re.sub(r'"\s*f?"', "", text).replace("{PREFIX}", "SLIPSTREAM_")
    assert [message for message in messages if message not in text] == []
