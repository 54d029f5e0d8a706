"""The runner of PyTorch's `test/distributed`, on a tree made here in the shape of PyTorch's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import torch_checkout
from conformance.torch_checkout import (
    Outcome,
    dump,
    files_to_run,
    load,
    markdown,
    new_failures,
    read_results,
    report,
)

HERE = Path(__file__).resolve().parent
pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's test classes import it")

# As in PyTorch: each test starts a process for each rank; the base class sets WORLD_SIZE and not RANK, and makes the
# group with a rank of its own.
COLLECTIVES = """
import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.testing._internal.common_distributed import DistributedTestBase, skip_if_lt_x_gpu


class Hook(JoinHook):
    def main_hook(self):
        dist.all_reduce(torch.zeros(1))


class Adder(Joinable):
    join_device = torch.device("cpu")
    join_process_group = property(lambda self: dist.group.WORLD)

    def __init__(self):
        super().__init__()

    def join_hook(self, **kwargs):
        return Hook()

    def __call__(self):
        Join.notify_join_context(self)
        one = torch.ones(1)
        dist.all_reduce(one)
        return one.item()


class TestSums(DistributedTestBase):
    world_size = property(lambda self: 2)

    def test_join(self):
        self.create_pg("cpu")
        adder = Adder()
        with Join([adder]):
            total = sum(adder() for _ in range(3 + self.rank))
        self.assertEqual(total, 6 + self.rank)

    def test_backend(self):
        self.create_pg("cpu")
        self.assertNotIn("slipstream", type(dist.group.WORLD).__module__)

    @skip_if_lt_x_gpu(2)
    def test_accelerators(self):
        pass

    def setUp(self):
        os.environ["GIVEN"] = str(os.getpid())
        super().setUp()

    def test_environment(self):
        self.assertNotEqual(os.environ["GIVEN"], str(os.getpid()))
"""


def make_checkout(root: Path) -> Path:
    folder = root / "test" / "distributed"
    folder.mkdir(parents=True)
    (folder / "test_sums.py").write_text(COLLECTIVES)
    (folder / "test_c10d_nccl.py").write_text("raise SystemExit('needs a GPU')")
    (folder / "elastic").mkdir()
    (folder / "elastic" / "api_test.py").write_text("def test_nothing(): pass")
    return root


def test_which_files_run(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path)
    assert files_to_run(checkout, (), ("*nccl*",)) == ["elastic/api_test.py", "test_sums.py"]
    assert files_to_run(checkout, ("elastic/*",), ()) == ["elastic/api_test.py"]


@pytest.mark.slow
def test_a_group_made_by_pytorchs_test_classes(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path)
    file = tmp_path / "results.json"
    process = subprocess.run(
        [sys.executable, str(HERE / "torch_checkout.py"), str(checkout), "--devices=2", f"--json={file}"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert file.exists(), process.stderr
    results = json.loads(file.read_text())["test_sums.py"]
    assert results["gloo"]["verdicts"] == {
        "TestSums::test_join": "passed",
        "TestSums::test_backend": "passed",
        "TestSums::test_accelerators": "passed",
        "TestSums::test_environment": "passed",
    }
    # The second test fails under slipstream on purpose: it shows that slipstream runs, and that a failure is found.
    assert results["slipstream"]["verdicts"]["TestSums::test_join"] == "passed", process.stdout
    assert results["slipstream"]["verdicts"]["TestSums::test_backend"] == "failed", process.stdout
    assert process.returncode == 1
    assert "test_sums.py TestSums::test_backend" in process.stdout


def test_both_are_first_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = []

    def run_file(_: Path, name: str, backend: str, *__: object) -> Outcome:
        ran.append((name, backend))
        return Outcome({"a": "skipped" if "gpu" in name else "passed"})

    monkeypatch.setattr(torch_checkout, "run_file", run_file)
    results = torch_checkout.run_files(tmp_path, ["a", "b", "gpu1", "gpu2"], 1, 1, 0)
    assert ran == [
        *[("a", "gloo"), ("a", "slipstream"), ("b", "slipstream"), ("b", "gloo")],
        *[("gpu1", "gloo"), ("gpu2", "slipstream"), ("gpu2", "gloo")],
    ]
    assert {name: sorted(tests) for name, tests in results.items()} == {
        "a": ["gloo", "slipstream"],
        "b": ["gloo", "slipstream"],
        "gpu1": ["gloo"],
        "gpu2": ["gloo"],
    }


def test_a_test_that_does_not_end_has_failed() -> None:
    lines = [
        json.dumps({"name": name, "verdict": verdict, "reason": "", "seconds": 1.0})
        for name, verdict in (("a", "began"), ("a", "passed"), ("b", "began"))
    ]
    tests = read_results(lines, -9, 30.0)
    assert tests.verdicts == {"a": "passed", "b": "failed"}
    assert tests.reasons["b"] == "hung: the file took more than 30 s"


def test_failures_that_gloo_does_not_have() -> None:
    gloo = Outcome({"a": "passed", "b": "failed", "c": "passed"}, {}, {"a": 2.0, "b": 1.0, "c": 2.0})
    ours = Outcome(
        {"a": "passed", "b": "failed", "c": "failed"}, {"c": "why"}, {"a": 1.0, "b": 1.0, "c": 1.0}
    )
    results = {"x.py": {"gloo": gloo, "slipstream": ours}, "gpu.py": {"gloo": Outcome({"d": "skipped"})}}
    assert "| x.py | 2/1/0 | 1/2/0 | 0.50 |" in markdown(results)
    assert "gloo skips all its tests in `gpu.py`." in markdown(results)
    assert new_failures(results) == [("x.py", "c")]
    assert "x.py c: why" in report(results)
    assert "0.50" in report(results)
    assert not new_failures(
        results, [{"backend": "checkout", "file": "x.py", "test": "c", "reason": "known"}]
    )


def test_what_a_cut_file_did_not_begin_has_not_failed(tmp_path: Path) -> None:
    gloo = Outcome({"a": "passed", "b": "passed", "c": "passed"})
    lines = [json.dumps({"name": "a", "verdict": "began", "reason": "", "seconds": 0.0})]
    results = {"x.py": {"gloo": gloo, "slipstream": read_results(lines, -9, 30.0)}}
    file = tmp_path / "results.json"
    file.write_text(dump(results))
    assert new_failures(load(file)) == [("x.py", "a")]
    assert "| x.py (cut) |" in markdown(results)
    results["x.py"]["slipstream"] = read_results(lines, -11, 30.0)
    assert new_failures(results) == [("x.py", "a"), ("x.py", "b"), ("x.py", "c")]
