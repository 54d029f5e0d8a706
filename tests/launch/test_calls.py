"""`slipstream.run`: a function is called as the ranks of a job, and its results or its exception come back."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import slipstream
from launch import called
from slipstream.launch.calls import _show

CALLER = (
    "import sys, slipstream; from launch import called; slipstream.run(called.stays, [sys.argv[1]], np=2)"
)


def wait_for(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.01)  # a poll of other processes


def test_results_come_in_order_of_rank_and_output_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    results = slipstream.run(called.total, args=[2.0], kwargs={"shift": 1.0}, np=3)
    assert [rank for rank, _ in results] == [0, 1, 2]
    assert [list(total) for _, total in results] == [[9.0] * 4] * 3
    assert sorted(capfd.readouterr().out.splitlines()) == [f"[{rank}] hello from {rank}" for rank in range(3)]


def test_the_number_of_ranks_has_horovods_name_too() -> None:
    assert slipstream.run(pow, args=[2, 3], num_proc=1) == [8]
    with pytest.raises(ValueError, match="np=2, num_proc=1: they mean the same, give one of them"):
        slipstream.run(pow, args=[2, 3], np=2, num_proc=1)


def test_what_a_rank_raised_is_raised_with_its_traceback() -> None:
    with pytest.raises(KeyError, match="no such column") as caught:
        slipstream.run(called.one_raises, np=3)
    text = str(caught.value.__cause__)
    assert text.startswith("\nrank 1:\nTraceback")
    assert "called.py" in text
    assert "calls.py" not in text  # our own frames


def test_an_exception_that_cannot_travel_is_told() -> None:
    with pytest.raises(slipstream.SlipstreamError, match=r"rank 0: .*Awkward: 1 and 2") as caught:
        slipstream.run(called.raises_awkwardly, np=1)
    assert "raises_awkwardly" in str(caught.value.__cause__)


def test_a_rank_that_exits_has_no_result() -> None:
    with pytest.raises(slipstream.SlipstreamError, match=r"rank 1: the function called sys.exit\(0\)"):
        slipstream.run(called.exits, np=2)


def test_a_rank_that_is_killed_is_named() -> None:
    with pytest.raises(slipstream.SlipstreamError, match=r"ended without a result.*exit code is 137"):
        slipstream.run(called.killed, np=2)


def test_what_cannot_be_sent_is_said() -> None:
    with pytest.raises(TypeError, match="what the function returned cannot be pickled"):
        slipstream.run(called.returns_a_lock, np=1)
    with pytest.raises(ValueError, match="at least one rank"):
        slipstream.run(called.total, np=0)
    with pytest.raises(TypeError, match="fn is not a function: 3"):
        slipstream.run(3, np=2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="args is not a list or tuple of the arguments of fn: 1"):
        slipstream.run(called.total, 1, np=2)  # type: ignore[arg-type]


def test_pickles_and_secrets_are_for_this_user_alone() -> None:
    (found,) = slipstream.run(called.modes, np=1)
    assert {mode for name, mode in found.items() if name.startswith("slipstream-run-")} == {0o700}
    assert {mode for name, mode in found.items() if not name.startswith("slipstream-run-")} == {0o600}
    assert {"call", "request"} <= set(found)
    lines, secret = slipstream.run(_lines_and_secret, np=1)[0]
    assert "slipstream.launch.calls" in lines
    assert secret
    assert secret not in lines


def _lines_and_secret() -> tuple[str, str]:
    return called.command_lines(), called.secret()


def run_example(folder: Path) -> subprocess.CompletedProcess[str]:
    """The example of docs/running.md, whose function is one of __main__, as a script."""
    page = Path(__file__).parents[2].joinpath("docs", "running.md").read_text()
    (example,) = [
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "slipstream.run(" in block
    ]
    (folder / "example.py").write_text(example)
    return subprocess.run(
        [sys.executable, "example.py"],
        cwd=folder,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _environment() -> dict[str, str]:
    tests, tree = Path(__file__).parents[1], Path(slipstream.__file__).parents[1]
    given = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(tree), str(tests), given]))}


def test_a_function_of_a_notebook_needs_cloudpickle(tmp_path: Path) -> None:
    done = run_example(tmp_path)
    assert done.stdout == "[[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]\n", done.stderr
    (tmp_path / "cloudpickle.py").write_text("raise ImportError")
    done = run_example(tmp_path)
    assert "pip install cloudpickle, or put it into a module" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupt", "kill"])
def test_ranks_end_with_their_caller(number: signal.Signals, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CALLER, str(tmp_path)], env=_environment(), stderr=subprocess.PIPE, text=True
    ) as caller:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2, "the ranks")
        wait_for(lambda: all(path.read_text() for path in tmp_path.iterdir()), "their numbers")
        ranks = [path.read_text() for path in tmp_path.iterdir()]
        caller.send_signal(number)
        _, errors = caller.communicate(timeout=60)
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    wait_for(lambda: not any(Path("/proc", rank).exists() for rank in ranks), "the end of the ranks")


def test_a_terminal_gets_text_and_colours_alone() -> None:
    line = b"\x1b]0;title\x07\x1b[31mred\x1b[0m\n"
    for terminal, shown in ((True, "\x1b[31mred\x1b[0m\n"), (False, line.decode())):
        out = io.StringIO()
        out.isatty = lambda terminal=terminal: terminal  # type: ignore[method-assign, misc]
        _show(io.BytesIO(line), out)
        assert out.getvalue() == shown


def test_a_reader_that_has_left_ends_no_job() -> None:
    """The ranks print more than a pipe holds."""
    script = """
import sys, slipstream
from launch import called
sys.stderr.write(str(slipstream.run(called.prints, [2], np=2)))
"""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as out:
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=_environment(),
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    lost = 2 * 2 * (called.LONG + len("[0] \n"))
    assert done.stderr.startswith(f"slipstream: warning: {lost} bytes of output were lost: "), done.stderr
    assert "[2, 2]" in done.stderr
