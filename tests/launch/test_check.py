"""`slipstream check` and `slipstream version`, and that starting them loads nothing heavy."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import slipstream.launch
from slipstream.base.protocol import PROTOCOL, package_version
from slipstream.cli.check import Finding, _aes, inspect, works
from slipstream.cli.main import main

SOURCE = Path(slipstream.launch.__file__).parents[2]


def test_check_lists_everything() -> None:
    result = CliRunner().invoke(main, ["check", "--json"])
    findings = json.loads(result.stdout)
    names = {finding["name"] for finding in findings}
    expected = {"slipstream", "python", "engine", "cpu", "settings", "interface", "network", "frameworks"}
    assert names >= expected | {"open files", "locked memory", "shared memory", "congestion", "encryption"}
    assert all(finding["state"] in ("ok", "warn", "fail") for finding in findings)
    assert result.exit_code == int(any(finding["state"] == "fail" for finding in findings))


def test_a_framework_may_come_in_a_distribution_of_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        importlib.metadata,
        "packages_distributions",
        lambda: {"numpy": ["numpy"], "tensorflow": ["tensorflow_cpu"], "other": ["other"]},
    )
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"version of {name}")
    (found,) = [finding for finding in inspect() if finding.name == "frameworks"]
    assert found.text == "tensorflow version of tensorflow_cpu, numpy version of numpy"


def test_check_names_a_wrong_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_LANE", "2")
    result = CliRunner().invoke(main, ["check"])
    assert result.exit_code == 1
    told = "SLIPSTREAM_LANE: slipstream has no such variable; did you mean SLIPSTREAM_LANES?"
    assert result.stdout.count(told) == 1


def test_warnings_do_not_fail() -> None:
    assert works([Finding("a", "ok", ""), Finding("b", "warn", "")])
    assert not works([Finding("a", "fail", "")])


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["check", "--help"]])
def test_help(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0
    assert "slipstream" in result.stdout


def test_versions_agree() -> None:
    long = CliRunner().invoke(main, ["version"]).stdout
    assert long == CliRunner().invoke(main, ["--version"]).stdout
    assert long == f"slipstream {package_version()} (protocol version {PROTOCOL})\n"
    (found,) = (one for one in inspect() if one.name == "slipstream")
    assert f"slipstream {found.text}\n" == long


@pytest.mark.parametrize("module", ["slipstream.cli.main", "slipstream.launch.agent"])
def test_starting_loads_nothing_heavy(module: str) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(SOURCE)!r})
import {module}
heavy = {{"numpy", "torch", "slipstream._core", "slipstream.faces"}} & set(sys.modules)
sys.exit(repr(heavy) if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_check_says_which_congestion_control_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_CONGESTION", "reno")
    assert "slipstream's connections use reno" in CliRunner().invoke(main, ["check"]).stdout
    monkeypatch.setenv("SLIPSTREAM_CONGESTION", "none-such")
    result = CliRunner().invoke(main, ["check"])
    assert result.exit_code == 1
    assert "congestion control 'none-such'" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("value", "said"), [("0", "off; `slipstream run --encrypt` turns it on"), ("1", "on (")]
)
def test_check_says_whether_and_by_what_jobs_are_encrypted(
    monkeypatch: pytest.MonkeyPatch, value: str, said: str
) -> None:
    monkeypatch.setenv("SLIPSTREAM_ENCRYPT", value)
    (found,) = (one for one in inspect() if one.name == "encryption")
    assert found.text.startswith(said)
    assert re.search(r": AES-128-GCM by OpenSSL \d+\.\d+\.\d+, ", found.text)


@pytest.mark.parametrize(
    ("version", "flags", "said"),
    [
        ("3.0.19", {"aes", "avx512f", "avx512vl", "vaes", "vpclmulqdq"}, "OpenSSL 3.1 or newer"),
        ("3.1.0", {"aes", "avx512f", "avx512vl", "vaes", "vpclmulqdq"}, "AES instructions"),
        ("3.0.19", {"aes", "avx2", "vaes"}, "AES instructions"),
        ("3.5.1", set(), "so it is slow"),
    ],
)
def test_check_says_if_a_newer_openssl_would_be_faster(version: str, flags: set[str], said: str) -> None:
    text = _aes(version, flags)
    assert said in text
    assert ("newer" in text) == ("newer" in said)
