"""What the commands of the help and the pages find when they are run: their files, and hosts of the names they use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import slipstream
from slipstream.lab import Lab

SECRET = "0123456789abcdef" * 4
GPUS = ["node1", "node2", "node3", "node4", "n1", "n2", "n3", "n4"]
CPUS = ["cpu1", "cpu2", "cpu3"]

TRAIN = """
import os
if "SLIPSTREAM_REPLACE" in os.environ:
    import torch
    torch.distributed.init_process_group("gloo")
    served_by = type(torch.distributed.group.WORLD).__module__  # by name it stays gloo
    assert served_by.startswith("slipstream."), served_by
    x = torch.ones(3)
    torch.distributed.all_reduce(x)
    assert (x == torch.distributed.get_world_size()).all()
    torch.distributed.destroy_process_group()
else:
    import numpy
    import slipstream
    slipstream.init()
    x = slipstream.all_reduce(numpy.ones(3, numpy.float32))
    assert (x == slipstream.size()).all()
    slipstream.shutdown()
"""
MODEL = """
import torch
def make():
    return torch.nn.Linear(4, 2), lambda batch: (torch.ones(batch, 4),)
"""


def make_files(folder: Path) -> None:
    """Scripts, host files and whatever else the commands name."""
    (folder / "mine").mkdir()
    (folder / "mine" / "models.py").write_text(MODEL)
    for name in ("train.py", "sum.py"):
        (folder / name).write_text(TRAIN)
    (folder / "job.sh").write_text("#!/bin/sh\nexec slipstream run -np 3 -- python train.py\n")
    (folder / "job.sh").chmod(0o700)
    (folder / "hosts").write_text("node1 slots=4\nnode2 slots=4\ncpu1 reducer\n")
    (folder / "lab.yaml").write_text("rate: 500mbit\nslots: 4\nhosts: [h1, h2]\n")
    (folder / "reducer.secret").write_text(SECRET)
    (folder / "reducer.secret").chmod(0o600)


def environment() -> dict[str, str]:
    """The `slipstream` and `python` that are tested, and nothing of a job or lab around the tests."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    tree = str(Path(slipstream.__file__).parents[1])
    python_path = os.pathsep.join(filter(None, [tree, ".", os.environ.get("PYTHONPATH")]))
    return clean | {"PATH": path, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}


class Stage:
    """Runs commands in a folder: on this machine, or on `node1` of a lab."""

    def __init__(self, folder: Path, lab: Lab | None) -> None:
        self.folder, self.lab = folder, lab

    def start(self, text: str, host: str = "node1") -> subprocess.Popen[str]:
        """A shell with ``text``: on a host of the lab, but for what makes labs itself. All output is a pipe."""
        options: dict[str, Any] = {"cwd": self.folder, "stdin": subprocess.DEVNULL, "text": True}
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": environment()}
        if self.lab is None or "slipstream lab " in text:
            options["env"]["SLIPSTREAM_LAB"] = "lab"  # whatever other labs stay on this machine
            return subprocess.Popen(["bash", "-c", text], **options)
        # A job goes where the command says, and not to the lab's hosts by default.
        script = f"unset SLIPSTREAM_HOSTFILE SLIPSTREAM_LAB SLIPSTREAM_LAB_RATE; {text}"
        return self.lab.popen(host, ["bash", "-c", script], **options)

    def run(self, text: str, seconds: float = 240.0) -> tuple[int, str]:
        """The exit code and the output of ``text``."""
        with self.start(text) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
            finally:
                process.kill()
        return process.returncode, output

    def ends_when_asked(self, text: str) -> tuple[int, str]:
        """The same of a service: it is asked to end as soon as it has said that it listens."""
        with self.start(f"exec {text}") as process:
            try:
                assert process.stdout is not None
                first = process.stdout.readline()
                process.terminate()
                output, _ = process.communicate(timeout=60)
            finally:
                process.kill()
        return process.returncode, first + output

    @contextmanager
    def reducers(self) -> Iterator[str]:
        """Reducers on the CPU hosts; gives what stands before the commands of a job that uses them."""
        with ExitStack() as stack:
            for host in CPUS:
                text = "exec slipstream reducer --bind 0.0.0.0 --secret-file reducer.secret"
                process = stack.enter_context(self.start(text, host))
                stack.callback(process.kill)
                assert process.stdout is not None
                assert "listens" in process.stdout.readline()
            yield "export SLIPSTREAM_REDUCER_SECRET_FILE=$PWD/reducer.secret; "
