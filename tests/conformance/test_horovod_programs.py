"""The runner of programs written for Horovod, on one made here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("torch")
HERE = Path(__file__).resolve().parent

# It imports torchvision and uses a GPU; the table asks for what it prints.
PROGRAM = """
import numpy as np
import torch
from torchvision import datasets, models, transforms

images = datasets.CIFAR10("data", transform=transforms.Compose([transforms.ToTensor()]))
network = models.resnet18(num_classes=10).cuda()
image, _ = images[0]
print("scores", len(network(image[None].to("cuda:0")).view(-1)), np.float(image.max()))
"""


# What it prints as the batch of all workers is right only where each has its share.
SHARING = """
import os, sys
print("together", int(sys.argv[1]) * int(os.environ[sys.argv[2]]))
"""


def run_table(folder: Path, entries: list[dict[str, Any]], *options: str) -> tuple[int, dict[str, Any], str]:
    """Runs `horovod_programs.py`: its exit status, its results, and what it printed."""
    table, results = folder / "table.json", folder / "results.json"
    table.write_text(json.dumps(entries))
    command = [sys.executable, str(HERE / "horovod_programs.py"), str(folder), f"--table={table}"]
    process = subprocess.run(
        [*command, f"--json={results}", *options], capture_output=True, text=True, timeout=280, check=False
    )
    assert results.exists(), process.stderr
    return process.returncode, json.loads(results.read_text()), process.stdout


def repository(folder: Path, program: str) -> Path:
    """A checkout that holds one program, `train.py`."""
    made = folder / "someone" / "something"
    made.mkdir(parents=True)
    (made / "train.py").write_text(program)
    return made


ENTRY = {"repository": "someone/something", "commit": "1234567", "uses": "nothing"}


def test_a_program_that_asks_for_more_than_there_is(tmp_path: Path) -> None:
    made = repository(tmp_path, PROGRAM)
    entry = {
        **ENTRY,
        "name": "scores",
        "command": "--as-gpu train.py",
        "find": "scores (\\d+)",
        "at_least": 10,
    }
    status, results, printed = run_table(
        tmp_path,
        [entry, {**entry, "name": "more scores", "at_least": 11}],
        "--workers=1",
        "--launch=slipstream run -np {ranks} --",
    )
    told = {name: (of["1"]["verdict"], of["1"]["reason"]) for name, of in results.items()}
    assert told == {"scores": ("ran", "scores 10"), "more scores": ("failed", "scores 10")}, printed
    assert status == 1
    assert sorted(path.name for path in made.iterdir()) == ["train.py"]


def test_workers_share_the_batch_of_one_and_must_agree_with_it(tmp_path: Path) -> None:
    repository(tmp_path, SHARING)
    entry = {**ENTRY, "name": "shared", "find": "together (\\d+)", "batch": 64, "within": 0.5}
    shared = {**entry, "command": "train.py {batch} WORKERS"}
    status, results, printed = run_table(
        tmp_path,
        [
            shared,
            {**shared, "name": "not shared", "command": "train.py 64 WORKERS"},
            {**shared, "name": "lacking", "needs": ["no-such-package"]},
            {**shared, "name": "indivisible", "batch": 65, "workers": [2]},
        ],
        "--launch=env WORKERS={ranks}",
    )
    assert {name: {size: run["verdict"] for size, run in of.items()} for name, of in results.items()} == {
        "shared": {"1": "ran", "2": "ran"},
        "not shared": {"1": "ran", "2": "differs"},
        "lacking": {"1": "failed", "2": "failed"},
        "indivisible": {"2": "failed"},
    }, printed
    assert "batch of 64: 64 apart, at most 0.5 allowed" in printed
    assert "no-such-package" in results["lacking"]["2"]["reason"]
    assert status == 1


def test_every_check_of_the_table_can_fail_and_every_program_is_compared_or_excused() -> None:
    """A check is a range that a program can miss, or a text; an entry has a comparison, or says why not."""
    programs = json.loads((HERE / "horovod_programs.json").read_text())
    for entry in programs:
        if "why_not" in entry:
            continue
        numbers = "(" in entry["find"].replace("\\(", "")
        assert ("at_least" in entry or "at_most" in entry) == numbers, entry["name"]
        assert entry.get("at_least", 1) > 0, entry["name"]
        assert entry.get("at_most", 1) < 1000, entry["name"]
        assert "within" in entry or "unequal" in entry, entry["name"]
    ran = {entry["repository"] for entry in programs if "why_not" not in entry} - {"horovod/horovod"}
    assert len(ran) >= 10
