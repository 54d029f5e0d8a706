"""The runner of programs written for Horovod, on one made here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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


def test_a_program_that_asks_for_more_than_there_is(tmp_path: Path) -> None:
    repository = tmp_path / "someone" / "something"
    repository.mkdir(parents=True)
    (repository / "train.py").write_text(PROGRAM)
    entry = {
        "name": "scores",
        "repository": "someone/something",
        "commit": "1234567",
        "uses": "nothing",
        "command": "--as-gpu train.py",
        "find": "scores (\\d+)",
        "at_least": 10,
    }
    table, results = tmp_path / "table.json", tmp_path / "results.json"
    table.write_text(json.dumps([entry, {**entry, "name": "more scores", "at_least": 11}]))
    command = [sys.executable, str(HERE / "horovod_programs.py"), str(tmp_path), f"--table={table}"]
    command += [f"--json={results}", "--workers=1", "--launch=slipstream run -np {ranks} --"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert results.exists(), process.stderr
    told = {
        name: (of["1"]["verdict"], of["1"]["reason"]) for name, of in json.loads(results.read_text()).items()
    }
    assert told == {"scores": ("ran", "scores 10"), "more scores": ("failed", "scores 10")}, process.stdout
    assert process.returncode == 1
    assert sorted(path.name for path in repository.iterdir()) == ["train.py"]
