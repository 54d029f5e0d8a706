"""The runner of JAX's multi-process tests: what it reads, and what it says of it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
XML = """<testsuites><testsuite>
<testcase name="test_good" classname="__main__.Sums" status="run" result="completed"/>
<testcase name="test_bad" classname="__main__.Sums"><failure message="m">Traceback
ValueError: {why}
</failure></testcase>
<testcase name="test_not" classname="__main__.Sums"><skipped message="needs a GPU"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture(scope="module")
def suite() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        yield importlib.import_module("jax_suite")


def test_what_the_processes_say_of_a_test(suite: Any, tmp_path: Path) -> None:
    file = tmp_path / "0.xml"
    file.write_text(XML.format(why="three"))
    told = suite.read(file)
    assert told == {
        "Sums.test_good": ("passed", ""),
        "Sums.test_bad": ("failed", "ValueError: three"),
        "Sums.test_not": ("skipped", "needs a GPU"),
    }
    assert suite.read(tmp_path / "none.xml") == {}
    passed, failed = told["Sums.test_good"], told["Sums.test_bad"]
    assert suite.united([passed, failed], "") == failed
    assert suite.united([passed, None], "hung for 3 s") == (
        "failed",
        "a process did not get to it: hung for 3 s",
    )
    assert suite.united([passed, passed], "") == passed


def test_what_is_new(suite: Any) -> None:
    def tests(**verdicts: str) -> dict[int, dict[str, tuple[str, str]]]:
        return {2: {name: (verdict, "") for name, verdict in verdicts.items()}}

    results = {"gloo": tests(a="failed", b="passed"), "slipstream": tests(a="failed", b="failed", c="failed")}
    assert suite.new_failures(results) == [(2, "b"), (2, "c")]
    assert "| gloo | 2 | 1 | 1 | 0 |" in suite.report(results)
