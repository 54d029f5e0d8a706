"""The runner of Horovod's tests, on a tree made here in the shape of Horovod's."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent

# The second test fails because the first has run in the same process; the third ends on one of the ranks alone. The
# last two have parts: one of them is skipped, or all.
TESTS = """
import os
import threading
import unittest

ran = []

def test_passes():
    ran.append(1)

def test_fails_after_another():
    assert not ran, "something ran before"

def test_hangs():
    if os.environ["HOROVOD_RANK"] == "1":
        threading.Event().wait()

def test_runs_in_another_job():
    pass

class Parts(unittest.TestCase):
    def test_of_some(self):
        with self.subTest("one"):
            self.skipTest("not this one")
        with self.subTest("the other"):
            pass

    def test_of_none(self):
        for part in "ab":
            with self.subTest(part):
                self.skipTest("none of them")

    def test_of_a_bad_one(self):
        for part in "ab":
            with self.subTest(part):
                self.assertEqual(part, "a")
"""


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[[str], Any]]:
    """Imports a module that finds its neighbours on the path, as when the command is run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        yield importlib.import_module


def test_what_becomes_of_each_test(tmp_path: Path) -> None:
    folder = tmp_path / "test" / "parallel"
    folder.mkdir(parents=True)
    (folder / "test_torch.py").write_text(TESTS)
    file = tmp_path / "results.json"
    command = [sys.executable, str(HERE / "horovod_suite.py"), str(tmp_path), "--ranks=2", "--limit=3"]
    command += [f"--json={file}", "--launch=slipstream run -np {ranks} --", "--commit=1234 of a day"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert file.exists(), process.stderr
    told = json.loads(file.read_text())
    assert told["ran"]["horovod"] == "1234 of a day"
    tests = told["results"]["2"]["parallel/test_torch.py"]
    assert {name: {way: told["verdict"] for way, told in test.items()} for name, test in tests.items()} == {
        "test_passes": {"together": "passed"},
        "test_fails_after_another": {"together": "failed", "alone": "passed"},
        "test_hangs": {"together": "hung", "alone": "hung"},
        "test_runs_in_another_job": {"together": "passed"},
        "Parts::test_of_some": {"together": "passed"},
        "Parts::test_of_none": {"together": "skipped"},
        "Parts::test_of_a_bad_one": {"together": "failed", "alone": "failed"},
    }
    assert "none of them" in tests["Parts::test_of_none"]["together"]["reason"]
    assert "'b' != 'a'" in tests["Parts::test_of_a_bad_one"]["alone"]["reason"]
    assert "something ran before" in tests["test_fails_after_another"]["together"]["reason"]
    assert tests["test_hangs"]["alone"]["reason"] == "rank 1 was in line 16 for 3 s"
    assert process.returncode == 1
    assert "3 failures that are not known" in process.stdout


def line(name: str, verdict: str, at: float, reason: str = "") -> dict[str, Any]:
    return {"name": name, "verdict": verdict, "reason": reason, "seconds": 0.5, "at": at}


def test_the_failure_that_came_first_is_the_reason(load: Callable[[str], Any]) -> None:
    told = {
        0: [line("a", "began", 1), line("a", "failed", 3, "rank 1 has left")],
        1: [line("a", "began", 1), line("a", "failed", 2, "wrong sum"), line("a", "passed", 4)],
    }
    found = load("horovod_job").verdicts(told, False, 60.0, "", {})
    assert (found["a"].verdict, found["a"].reason) == ("failed", "rank 1: wrong sum")


def test_a_file_that_cannot_be_imported(load: Callable[[str], Any]) -> None:
    told = {rank: [line("(import)", "failed", rank, "ImportError: no x")] for rank in range(2)}
    found = load("horovod_job").verdicts(told, False, 60.0, "exit status 2", {})
    assert [(name, of.verdict, of.reason) for name, of in found.items()] == [
        ("(import)", "failed", "rank 0: ImportError: no x")
    ]


def test_a_rank_that_ends_in_a_test_has_died(load: Callable[[str], Any]) -> None:
    told = {
        0: [line("a", "began", 1), line("a", "passed", 2), line("b", "collected", 0)],
        1: [line("a", "began", 1), line("b", "collected", 0)],
    }
    found = load("horovod_job").verdicts(told, False, 60.0, "exit status 139", {})
    assert (found["a"].verdict, found["a"].reason) == ("died", "exit status 139")
    assert found["b"].verdict == "not run"


def test_known_exceptions_and_the_page(load: Callable[[str], Any]) -> None:
    suite = load("horovod_suite")
    bad, good = suite.Result("failed", "rank 0: ValueError: 2 | 3"), suite.Result("passed")
    results = {
        2: {"x.py": {"T::a": {"together": bad, "alone": good}, "T::b": {"together": good}}},
        3: {"x.py": {"T::a": {"together": bad, "alone": bad}}},
    }
    known = [{"file": "x.py", "test": "T::a", "ranks": [3], "reason": "theirs"}]
    assert [failure[:3] for failure in suite.failures(results, known)] == [(2, "x.py", "T::a")]
    assert suite.not_needed(results, known) == []
    assert suite.not_needed(results, [{**known[0], "test": "T::b", "ranks": [2]}]) == [(2, "T::b")]
    ran = dict.fromkeys(("date", "horovod", "launch", "python", "slipstream", "torch"), "?")
    page = suite.horovod_page.page(results, ran, [])
    assert "| `x.py` | 2 | 1 |  | 1 |" in page
    assert "| `a` | 2: failed (alone passed), 3: failed | `rank 0: ValueError: 2 \\| 3` |" in page
    assert "| theirs |" not in suite.horovod_page.page(results, ran, known)
    assert "| theirs |" in suite.horovod_page.page(results, ran, [{**known[0], "ranks": [2, 3]}])
    loaded = suite.load(suite.dump(results, ran))
    assert loaded == (results, ran)


def test_a_run_that_was_stopped_goes_on(load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    suite = load("horovod_suite")
    passed, failed = suite.Result("passed"), suite.Result("failed", "rank 0: no")
    asked = []

    def run_job(_job: Any, _ranks: int, _file: str, patterns: Any, without: Any = ()) -> dict[str, Any]:
        asked.append((list(patterns), list(without)))
        if len(asked) == 1:
            stopped = suite.Stopped()
            stopped.results = {"b": passed}
            raise stopped
        return {"c": failed}

    monkeypatch.setattr(suite, "run_job", run_job)
    done = {"a": {"together": passed}, "(end)": {"together": failed}}
    first = suite.run_file(None, 2, "x.py", ["*"], suite.ALONE["failed"], (), done)
    found = {**done, **dict([next(first)])}
    with pytest.raises(suite.Stopped):
        next(first)
    assert found["b"] == {"together": passed}
    again = dict(suite.run_file(None, 2, "x.py", ["*"], suite.ALONE["failed"], (), found))
    assert again == {"c": {"together": failed, "alone": failed}}
    assert asked == [(["*"], ["a"]), (["*"], ["a", "b"]), (["c"], [])]


def test_each_runner_has_its_files(load: Callable[[str], Any], tmp_path: Path) -> None:
    folder = tmp_path / "test" / "parallel"
    folder.mkdir(parents=True)
    for name in ("test_torch.py", "test_tensorflow.py", "test_mxnet1.py"):
        (folder / name).touch()
    chosen = {
        runner: getattr(load(runner), suite).files_to_run(tmp_path, ["*"])
        for runner, suite in (
            ("horovod_suite", "TORCH"),
            ("horovod_tensorflow_suite", "TENSORFLOW"),
            ("horovod_mxnet_suite", "MXNET"),
        )
    }
    assert chosen == {
        "horovod_suite": ["parallel/test_torch.py"],
        "horovod_tensorflow_suite": ["parallel/test_tensorflow.py"],
        "horovod_mxnet_suite": ["parallel/test_mxnet1.py"],
    }
    assert load("horovod_tensorflow_suite").TENSORFLOW.files_to_run(tmp_path, ["*process_sets*"]) == []
