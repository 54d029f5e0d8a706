"""The runner of mpi4jax's tests: what it says of their results."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def test_failures_have_reasons_or_are_unexpected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    suite = importlib.import_module("mpi4jax_suite")
    results = {
        2: {
            "test_scan.test_scan": ("failed", "AssertionError"),
            "test_scan.test_scan_jit": ("passed", ""),
            "test_decorators.test_envvar_parsing": ("failed", "ModuleNotFoundError"),
        }
    }
    assert suite.unexpected(results) == [(2, "test_scan.test_scan")]
    page = suite.report(results)
    assert "| 2 | 1 | 2 | 0 |" in page
    assert "test_decorators.test_envvar_parsing: tests a private module" in page
    assert "test_scan.test_scan: AssertionError" in page
