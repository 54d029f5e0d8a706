"""A plug-in of pytest: it writes a line of JSON to the file CHECKOUT_RESULTS when a test begins and when it ends.

The lines remain when the process is killed. The last test that began and did not end is the one that hangs.
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any

__all__ = ["name_of", "pytest_collectreport", "pytest_runtest_logreport", "pytest_runtest_logstart", "write"]

RAISED = re.compile(r"[\w.]+(Error|Exception|Aborted|Mismatch|PeerLost|Timeout): .")


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        write(name="(import)", verdict="failed", reason=_reason(str(report.longrepr)), seconds=0.0)
    elif report.skipped:
        write(name="(import)", verdict="skipped", reason=_reason(str(report.longrepr)), seconds=0.0)


_parts: list[tuple[str, str]] = []  # of the test that runs now: outcome and reason


def pytest_runtest_logstart(nodeid: str) -> None:
    _parts.clear()
    write(name=name_of(nodeid), verdict="began", reason="", seconds=0.0)


def pytest_runtest_logreport(report: Any) -> None:
    """A test passes if a part of it has passed (unittest's `subTest`), and is skipped if all parts have been."""
    if hasattr(report, "context"):
        _parts.append((report.outcome, "" if report.passed else _reason(str(report.longrepr))))
        if not report.failed:
            return
    if report.when == "call" and report.passed and _parts and all(part[0] == "skipped" for part in _parts):
        write(name=name_of(report.nodeid), verdict="skipped", reason=_parts[0][1], seconds=report.duration)
    elif report.when == "call" or not report.passed:
        write(
            name=name_of(report.nodeid),
            verdict=report.outcome,
            reason="" if report.passed else _reason(str(report.longrepr)),
            seconds=report.duration,
        )


def name_of(nodeid: str) -> str:
    """The name of a test in its file."""
    return nodeid.split("::", 1)[-1]


def _reason(text: str) -> str:
    """The last line that names an exception, or else the last that says something: a reason to skip."""
    lines = [line.removeprefix("E ").strip() for line in text.splitlines()]
    named = [line for line in lines if RAISED.match(line)]
    return next((line for line in reversed(named or lines) if line), "")[:300]


def write(**entry: object) -> None:
    """Adds a line with ``entry`` and the time on the clock that all processes of the host share."""
    with open(os.environ["CHECKOUT_RESULTS"], "a", encoding="utf-8") as file:
        file.write(json.dumps({**entry, "at": time.monotonic()}) + "\n")
