"""What type checkers of users see: `py.typed` promises that it is the truth."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import slipstream
from slipstream import comm

pytest.importorskip("mypy")

RIGHT = """
import numpy as np

import slipstream
from slipstream import all_reduce
from slipstream.lab import Lab

slipstream.init()
total = all_reduce(np.ones(4, np.float32), slipstream.SUM)
work = slipstream.all_reduce(np.ones(4), async_op=True)
work.wait(timeout=10.0)
print(total.sum(), slipstream.rank() + 1, slipstream.world().ranks[0] + 1, slipstream.__version__.upper())
try:
    slipstream.barrier()
except slipstream.PeerLost as lost:
    print(lost.rank + 1, lost.host.upper())
for link in slipstream.link_statistics():
    print(link.rank + 1, [lane.sent + 1 for lane in link.lanes])
slipstream.shutdown()

with Lab(2, rate="1gbit") as lab:
    print(lab.hosts[0].upper())
"""

WRONG = {
    "slipstream.all_redcue(1)": "attr-defined",
    "slipstream.rank().upper()": "attr-defined",
    "slipstream.all_reduce()": "call-arg",
    "slipstream.send(np.ones(1), 'one')": "arg-type",
}

HOROVOD = """
import torch

import slipstream.torch as hvd

hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer.step()
mean: torch.Tensor = hvd.allreduce(torch.ones(2))
"""

WRONG_HOROVOD = {
    "hvd.alreduce(1)": "attr-defined",
    "hvd.rank().upper()": "attr-defined",
}


def check(folder: Path, text: str) -> str:
    """What mypy --strict says of the script ``text``."""
    script = folder / "train.py"
    script.write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file="]
    done = subprocess.run(
        [*command, "--cache-dir", str(folder / "cache"), str(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


CASES = [
    pytest.param(RIGHT, WRONG, id="arrays"),
    pytest.param(HOROVOD, WRONG_HOROVOD, id="horovod", marks=pytest.mark.slow),  # mypy reads all of PyTorch
]


@pytest.mark.parametrize(("right", "wrong"), CASES)
def test_mypy_accepts_right_uses_and_finds_wrong_ones(
    tmp_path: Path, right: str, wrong: dict[str, str]
) -> None:
    if "torch" in right:
        pytest.importorskip("torch")
    found = check(tmp_path, "\n".join([right, *wrong]))
    first = right.count("\n") + 2
    expected = [(f"train.py:{first + i}: error: ", f"[{kind}]") for i, kind in enumerate(wrong.values())]
    lines = [line for line in found.splitlines() if ": error: " in line]
    assert len(lines) == len(expected), found
    for line, (start, end) in zip(lines, expected, strict=True):
        assert line.startswith(start), found
        assert line.endswith(end), found


@pytest.mark.parametrize("package", [slipstream, comm])
def test_the_stub_of_a_package_names_what_the_package_has(package: object) -> None:
    path = Path(str(package.__file__)).with_suffix(".pyi")  # type: ignore[attr-defined]
    named: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            named |= {alias.asname for alias in node.names if alias.asname}
        elif isinstance(node, ast.Assign):
            named |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    assert named == set(package.__all__)  # type: ignore[attr-defined]
