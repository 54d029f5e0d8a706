"""Exceptions that end a rank: whose they are, and what of their tracebacks is shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import slipstream
from slipstream.base.excepthook import CONSEQUENCE, MIXED, OWN, grade, install, trimmed
from slipstream.base.units import parse_size
from slipstream.faces.horovod.reduce_ops import Adasum, engine_op

LOST = slipstream.PeerLost("rank 1 is gone", 1, "node1")


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def during(error: BaseException, context: BaseException) -> BaseException:
    error.__context__ = context
    return error


def test_whose_exception_it_is() -> None:
    assert grade(ValueError("x")) == OWN
    assert grade(slipstream.Timeout("x")) == OWN
    assert grade(LOST) == CONSEQUENCE
    assert grade(slipstream.Aborted("x")) == CONSEQUENCE
    assert grade(caused(RuntimeError("step 3"), LOST)) == CONSEQUENCE
    assert grade(during(KeyError("in a handler"), LOST)) == CONSEQUENCE
    assert grade(during(slipstream.PeerLost("x"), ValueError("own"))) == MIXED  # in a handler or finally
    through_torch = RuntimeError(
        "Got the following error when running the callback: PeerLost: rank 1 (host x)"
    )
    assert grade(through_torch) == CONSEQUENCE


def failing(call: object, *arguments: object) -> BaseException:
    try:
        call(*arguments)  # type: ignore[operator]
    except BaseException as error:
        return error
    raise AssertionError


def test_own_frames_are_hidden_where_the_users_tell_enough() -> None:
    error = failing(parse_size, "nonsense")
    text = trimmed(error, error.__traceback__)
    assert "units.py" not in text
    assert "test_excepthook.py" in text
    assert text.splitlines()[-1].startswith("ValueError: 'nonsense' is not a size")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: slipstream.all_reduse, "did you mean all_reduce?"),
        (lambda: engine_op(Adasum), "Adasum is for allreduce"),
    ],
)
def test_own_frames_are_hidden_for_what_is_not_there(call: Callable[[], object], said: str) -> None:
    error = failing(call)
    lines = trimmed(error, error.__traceback__).splitlines()
    assert said in lines[-1]
    assert not any(f"{os.sep}slipstream{os.sep}" in line for line in lines if line.startswith("  File"))


def test_own_frames_are_hidden_without_a_launcher(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from slipstream.base import units\nimport slipstream\nunits.parse_size('x')\n")
    for full in ("0", "1"):
        environment = {**os.environ, "SLIPSTREAM_FULL_TRACEBACK": full}
        done = subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
        )
        assert done.stderr.splitlines()[-1].startswith("ValueError: 'x' is not a size")
        assert done.stderr.count("units.py") == int(full)


def test_own_frames_are_hidden_where_a_link_leads_to_the_package(tmp_path: Path) -> None:
    """As in an environment that is a symbolic link."""
    (tmp_path / "link").symlink_to(Path(slipstream.__file__).parents[1])
    code = (
        "from slipstream.base import excepthook, units\n"
        "try: units.parse_size('x')\n"
        "except ValueError as error: print(excepthook.trimmed(error, error.__traceback__))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "link")}
    text = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert "ValueError: 'x' is not a size" in text
    assert "units.py" not in text


def test_the_cause_is_trimmed_too() -> None:
    error = caused(RuntimeError("step 3"), failing(parse_size, "nonsense"))
    text = trimmed(error, error.__traceback__)
    assert "units.py" not in text
    assert "direct cause" in text


def test_our_own_mistakes_are_shown_whole() -> None:
    error = failing(parse_size, 5)  # a TypeError or AttributeError of our code, not of the user's
    if isinstance(error, TypeError):
        error = AttributeError("x").with_traceback(error.__traceback__)
    assert "units.py" in trimmed(error, error.__traceback__)


def test_frames_that_cpp_adds_to_the_text_are_hidden() -> None:
    text = (
        "PeerLost: rank 1 left\n\nAt:\n  /x/comm/collectives/work.py(38): wait\n  /y/threading.py(982): run\n"
    )
    assert trimmed(RuntimeError(text), None) == "RuntimeError: PeerLost: rank 1 left\n\n"


@pytest.mark.parametrize("text", ["", "1", "x:1", "99:12", "1:1"])
def test_without_a_launcher_nothing_is_installed(text: str) -> None:
    before = sys.excepthook
    install({"SLIPSTREAM_REPORT": text})
    assert sys.excepthook is before


@pytest.mark.parametrize("text", ["x", "\u20ac" * 1000 + "\n" + "x" * 9000])
def test_a_launcher_is_told_what_is_about_to_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    install({"SLIPSTREAM_REPORT": f"{writer}:{os.fstat(writer).st_ino}"})
    sys.excepthook(ValueError, ValueError(text), None)
    told = [json.loads(line) for line in os.read(reader, 1 << 20).splitlines()]
    assert "".join(one["shown"] for one in told[:-1]) == capsys.readouterr().err
    assert told[-1]["grade"] == OWN
    os.close(reader)
    os.close(writer)


def test_a_report_fits_one_write(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    install({"SLIPSTREAM_REPORT": f"{writer}:{os.fstat(writer).st_ino}"})
    error = ValueError('"\n\u2028' * 5000)
    sys.excepthook(ValueError, error, None)
    data = os.read(reader, 1 << 20)
    assert len(data) <= 4096
    assert data.endswith(b"\n")
    told = json.loads(data)
    assert told["grade"] == OWN
    assert told["text"].startswith('ValueError: "\n\u2028"')
    assert capsys.readouterr().err.startswith("ValueError: ")
    os.close(reader)
    os.close(writer)
