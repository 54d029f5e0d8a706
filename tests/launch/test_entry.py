"""How the `slipstream` command begins, and what it says when its own output goes nowhere."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from slipstream.cli.main import main

INTERRUPTED = """
import os, signal, sys
from importlib.metadata import entry_points

class Hurry:
    def find_spec(self, name, path, target=None):
        if name == "slipstream.cli.main":  # the user is quicker than the imports
            os.kill(os.getpid(), signal.SIGINT)

(command,) = entry_points(group="console_scripts", name="slipstream")
start = command.load()
sys.meta_path.insert(0, Hurry())
sys.argv = ["slipstream", "version"]
start()
"""


def test_ctrl_c_while_the_command_is_imported_shows_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


UNTYPED = """
import importlib, pkgutil
import click
import slipstream.cli

click.ParamType.__class_getitem__ = None  # as in click 8.1, whose types take no parameter
for module in pkgutil.iter_modules(slipstream.cli.__path__, "slipstream.cli."):
    importlib.import_module(module.name)
"""


def test_the_oldest_click_that_is_allowed_will_do() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNTYPED], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_little_is_imported_before_the_command_looks_after_ctrl_c() -> None:
    code = (
        "import sys, slipstream; print({'importlib.metadata', 'dataclasses', 'difflib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_ctrl_c_within_a_command_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("slipstream.cli.main.inspect", interrupted)
    result = CliRunner().invoke(main, ["check"])
    assert (result.exit_code, result.output) == (130, "")


@pytest.mark.parametrize("words", [["check"], ["version"], ["run", "--help"], ["plan", "reducers", "--help"]])
def test_a_full_disk_as_standard_output_is_one_line(words: list[str]) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "slipstream", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "Error: cannot write standard output: No space left on device\n"
