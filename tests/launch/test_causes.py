"""Which rank brought the job down: its own exception is the last line, whoever ended first."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from launch.test_run import launch, run, ssh, tag
from slipstream.base.excepthook import CONSEQUENCE, MIXED, OWN
from slipstream.launch.causes import Causes, advice
from slipstream.launch.hosts import shown_names

__all__ = ["ssh", "tag"]


def report(grade: object, text: object) -> bytes:
    return json.dumps({"grade": grade, "text": text}).encode() + b"\n"


def test_the_first_of_those_that_failed_by_themselves() -> None:
    causes = Causes()
    causes.report(0, report(CONSEQUENCE, "PeerLost: x"))
    causes.failed(0, 1, "exited with code 1", [])
    assert not causes.certain
    causes.report(3, report(MIXED, "PeerLost: y"))
    causes.failed(3, 1, "exited with code 1", [])
    assert not causes.certain
    causes.report(2, report(OWN, "ValueError: z"))  # its process has not ended yet
    first = causes.first()
    assert first is not None
    assert (first.rank, first.code, first.error) == (2, 1, "ValueError: z")
    causes.failed(1, 137, "was ended by signal 9 (SIGKILL)", [])
    assert causes.certain
    first = causes.first()
    assert first is not None
    assert first.rank == 1


PACKETS = "PeerLost: packets larger than 575 bytes do not reach rank 1"


def lost(rank: int, how: str = "died or was killed: nothing listens there any more") -> str:
    return f"PeerLost: rank {rank} (host h{rank}) {how}"


def silent(rank: int) -> str:
    return lost(
        rank,
        "has sent nothing for 10 s (SLIPSTREAM_HEARTBEAT), and answers no ping: it is stopped, its machine",
    )


LEFT = lost(0, "has given up the connection that broke, and opened another one")


@pytest.mark.parametrize(
    ("errors", "cause"),
    [
        ({1: LEFT, 0: PACKETS}, 0),
        ({1: lost(0), 0: PACKETS}, 0),  # it has left because of that, and has not ended yet
        ({3: lost(2), 2: lost(1), 1: lost(0), 0: PACKETS}, 0),
        ({1: lost(0), 0: lost(1)}, 1),  # what is between them failed: the first
        ({0: LEFT.replace("rank 0", "rank 1"), 1: lost(0)}, 1),
        ({3: lost(2), 2: lost(0), 0: lost(2)}, 3),  # their processes have ended, nobody knows why: the first
        ({3: silent(2), 2: silent(0), 0: silent(2)}, 3),  # two have lost rank 2
        ({1: lost(0), 2: lost(0)}, 1),  # nothing is known of rank 0
    ],
)
def test_the_error_of_a_rank_that_others_lost_tells_more(errors: dict[int, str], cause: int) -> None:
    causes = Causes()
    for rank, text in errors.items():
        causes.report(rank, report(CONSEQUENCE, text))
    causes.failed(next(iter(errors)), 1, "exited with code 1", [])
    first = causes.first()
    assert first is not None
    assert first.rank == cause


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"{",
        b"[]",
        b"null",
        report(7, "x"),
        report(OWN, 3),
        b"\xff\n",
        report([], "x"),
        b"[" * 100_000,
    ],
    ids=range(10),
)
def test_reports_without_sense_are_passed_over(data: bytes) -> None:
    causes = Causes()
    causes.report(0, data)
    assert causes.first() is None


@pytest.mark.parametrize(
    ("tail", "grade", "error"),
    [
        ([], OWN, ""),
        ([b"no traceback", b"here"], OWN, ""),
        (
            [b"Traceback (most recent call last):", b'  File "x"', b"    f()", b"KeyError: 3"],
            OWN,
            "KeyError: 3",
        ),
        ([b'  File "x"', b"    f()", b"slipstream.base.errors.PeerLost: gone"], CONSEQUENCE, None),
        ([b'  File "x"', b"    f()", b"ValueError: two", b"lines"], OWN, "ValueError: two\nlines"),
    ],
)
def test_without_a_report_standard_error_tells(tail: list[bytes], grade: int, error: str | None) -> None:
    causes = Causes()
    causes.failed(0, 1, "exited with code 1", tail)
    first = causes.first()
    assert first is not None
    assert first.grade == grade
    assert error is None or first.error == error


def test_a_rank_that_knows_the_exit_code_is_told_the_cure_all_the_same() -> None:
    causes = Causes()
    text = "PeerLost: rank 1 finished (exit code 0) and left the job; rank 0 still waits"
    causes.failed(0, 1, "exited with code 1", [b'  File "x"', text.encode()])
    first = causes.first()
    assert first is not None
    cure = "rank 0 still waited for it. If rank 1 ran fewer steps: give all ranks the same number of batches, or let "
    cure += "it join after its loop (hvd.join(); DDP: with model.join())"
    assert advice(first, {1}, None) == cure
    assert advice(first, set(), None) == ""


@pytest.mark.parametrize(
    ("faces", "ways"),
    [
        (["slipstream.mxnet"], ""),
        ([], ""),
        (["slipstream.keras"], ", or let it join after its loop (hvd.join())"),
        (["torch.distributed"], ", or let it join after its loop (DDP: with model.join())"),
        (["slipstream.torch", "torch.distributed"], "hvd.join(); DDP: with model.join())"),
    ],
)
def test_only_faces_that_can_join_are_told_to(faces: list[str], ways: str) -> None:
    causes = Causes()
    told = {"grade": CONSEQUENCE, "text": "PeerLost: rank 1 finished (exit code 0)", "faces": faces}
    causes.report(0, json.dumps(told).encode())
    causes.failed(0, 1, "exited with code 1", [])
    first = causes.first()
    assert first is not None
    cure = advice(first, {1}, None)
    assert cure.endswith(ways or "give all ranks the same number of batches")
    assert ("join" in cure) == bool(ways)


def test_who_waits_for_a_message_is_told_of_messages() -> None:
    causes = Causes()
    text = "PeerLost: rank 1 finished (exit code 0); rank 0 still waits in recv(from rank 1, tag=7, int8)"
    causes.failed(0, 1, "exited with code 1", [b'  File "x"', text.encode()])
    first = causes.first()
    assert first is not None
    assert advice(first, {1}, None) == (
        "rank 0 still waited for it. Each send needs a recv on the other rank with the same tag, and each recv a send"
    )


def test_who_was_stopped_too_long_is_named() -> None:
    """Its program is right: neither a message nor a batch is missing."""
    causes = Causes()
    text = "PeerLost: rank 0 finished and left the job; some of what it had sent is lost: rank 1 did not take it for 2"
    causes.failed(
        1, 1, "exited with code 1", [b'  File "x"', f"{text}; rank 1 still waits in recv(...)".encode()]
    )
    first = causes.first()
    assert first is not None
    assert advice(first, {0}, None).startswith("rank 1 was stopped, or had no processor, for that long. ")


@pytest.mark.parametrize(
    ("module", "folder", "named"),
    [("numpy", "elsewhere", True), ("numpy", "", False), ("helpers_of_the_script", "elsewhere", False)],
)
def test_a_python_without_a_module_is_named(module: str, folder: str, named: bool) -> None:
    """If the launcher's has it, and is another one. What only lies in the folder of work is not meant."""
    causes = Causes()
    causes.failed(
        0,
        1,
        "exited with code 1",
        [b'  File "x"', f"ModuleNotFoundError: No module named '{module}'".encode()],
    )
    first = causes.first()
    assert first is not None
    program = str(Path(folder or Path(sys.executable).parent) / "python")
    assert advice(first, set(), program).startswith(f"{program} has no {module}; ") == named


def test_a_python_without_slipstream_is_named(tag: str, tmp_path: Path) -> None:
    """As when the launcher's environment is not activated: `python` is another one then."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    said = f"slipstream: {python} has no slipstream; the launcher runs with {sys.executable}. Activate that environ"
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    for command, options in (([str(python)], []), (["python"], ["-e", f"PATH={path}"])):
        code, _, err = run(tag, "-np", "2", *options, "--", *command, "-c", "import slipstream")
        assert code == 1
        assert err.splitlines()[-1].startswith(said), err
    code, _, err = run(tag, "-np", "1", "--", str(python), "-c", "import numpy, slipstream")
    assert f"{python} has no numpy; the launcher runs with" in err.splitlines()[-1]
    code, _, err = run(tag, "-np", "1", "--", str(python), "-c", "import something_else")
    assert "the launcher runs with" not in err


def test_a_host_has_one_name() -> None:
    assert shown_names(["localhost"]) == {"localhost": "localhost"}
    here = socket.gethostname()
    assert shown_names(["localhost", "me@node1"]) == {"localhost": here, "me@node1": "node1"}


# Rank 0 ends first, because it has lost rank 1, which fails by itself.
BYSTANDER = """
import os, sys, time
import slipstream
gone = sys.argv[1]
def train():
    if os.environ["RANK"] == "0":
        raise slipstream.PeerLost("rank 1 is gone", 1, "node1")
    while os.path.exists(f"/proc/{open(gone).read()}/fd"):
        time.sleep(0.01)
    raise ValueError("bad batch 17")
if os.environ["RANK"] == "0":
    open(gone + ".new", "w").write(str(os.getpid()))
    os.rename(gone + ".new", gone)
while not os.path.exists(gone):
    time.sleep(0.01)
train()
"""


@pytest.mark.parametrize("hosts", ["localhost:2", "localhost,node1"])
def test_a_bystander_is_not_blamed(tag: str, ssh: Path, tmp_path: Path, hosts: str) -> None:
    arguments = ("-np", "2", "-H", hosts, "--ssh-command", str(ssh))
    code, _, err = run(tag, *arguments, "--", sys.executable, "-c", BYSTANDER, str(tmp_path / "gone"))
    assert code == 1
    host = "localhost" if hosts == "localhost:2" else "node1"
    assert err.splitlines()[-1] == "    ValueError: bad batch 17"
    assert (
        err.count(f"slipstream: rank 1 on host {host} exited with code 1:\n    Traceback (most recent") == 1
    )
    assert err.count("slipstream: rank") == 1
    assert err.count("Traceback") == err.count("bad batch 17") == 1
    assert "slipstream: raised as well: PeerLost on rank 0 (--full-traceback shows all)\n" in err
    assert err.count("PeerLost") == 1


HIDDEN = """
import os, sys, time
import numpy, slipstream
slipstream.init()
rank = slipstream.rank()
slipstream.all_reduce(numpy.ones(4))
if rank == 2:
    raise SystemExit(0)
try:
    slipstream.all_reduce(numpy.ones(4))
except slipstream.SlipstreamError:
    raise RuntimeError("training failed") from None
"""


def test_a_rank_that_others_lost_is_named_though_they_hide_the_error(tag: str) -> None:
    code, _, err = run(tag, "-np", "3", "--", sys.executable, "-c", HIDDEN)
    assert code == 1
    assert "RuntimeError: training failed\n    after slipstream.base.errors.PeerLost: rank 2 " in err, err
    assert "slipstream: rank 2 finished (exit code 0)" in err.splitlines()[-1], err


def test_if_all_lost_another_the_first_is_named(tag: str) -> None:
    program = "import slipstream; raise slipstream.PeerLost('rank 7 is gone')"
    code, _, err = run(tag, "-np", "2", "--", sys.executable, "-c", program)
    assert code == 1
    assert err.splitlines()[-1] == "    slipstream.base.errors.PeerLost: rank 7 is gone"
    assert err.count("slipstream: rank") == 1


def test_a_rank_that_only_exits_is_the_cause(tag: str, tmp_path: Path) -> None:
    program = BYSTANDER.replace('raise ValueError("bad batch 17")', "sys.exit(5)")
    code, _, err = run(tag, "-np", "2", "--", sys.executable, "-c", program, str(tmp_path / "gone"))
    assert code == 5
    assert err.splitlines()[-1] == "slipstream: rank 1 on host localhost exited with code 5"


def test_an_exception_before_slipstream_is_loaded_is_told_once(tag: str) -> None:
    code, _, err = run(tag, "-np", "1", "--", sys.executable, "-c", "import no_such_module")
    assert code == 1
    assert err.count("Traceback") == 1
    assert err.splitlines()[-1] == "    ModuleNotFoundError: No module named 'no_such_module'"


JOB = """
import numpy, slipstream
slipstream.init()
slipstream.all_reduce(numpy.ones(4))
if slipstream.rank() == 1:
    raise ValueError("bad batch 17")
slipstream.all_reduce(numpy.ones(4))
"""


@pytest.mark.parametrize("full", [False, True])
def test_a_job_names_the_rank_that_raised(tag: str, full: bool) -> None:
    option = ["--full-traceback"] if full else []
    code, _, err = run(tag, "-np", "3", *option, "--", sys.executable, "-c", JOB)
    assert code == 1
    assert err.splitlines()[-1] == "    ValueError: bad batch 17"


DDP = """
import sys
import torch
import torch.distributed as dist
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, batch):
        if batch[0, 0] == 2 and dist.get_rank() == 1:
            raise ValueError("bad batch 17")
        return self.layer(batch)
dist.init_process_group(sys.argv[1])
model = torch.nn.parallel.DistributedDataParallel(Model())
for step in range(4):
    model(torch.full((2, 4), float(step))).sum().backward()
"""


@pytest.mark.parametrize("backend", ["gloo", "slipstream"])
def test_a_job_of_pytorch_names_the_rank_that_raised(tag: str, backend: str) -> None:
    pytest.importorskip("torch")
    option = ["--replace", "gloo"] if backend == "gloo" else []
    arguments = ("-np", "3", "--start-timeout", "200", *option, "--", sys.executable, "-c", DDP, backend)
    job = launch(tag, *arguments, OMP_NUM_THREADS="1")
    _, err = job.communicate(timeout=240)
    assert job.returncode == 1
    assert err.splitlines()[-1] == "    ValueError: bad batch 17", err
    assert "slipstream: rank 1 on host localhost exited with code 1:\n    " in err
    assert err.count("Traceback (most recent call last)") == 1, err


NUMPY = """
import numpy, slipstream
slipstream.init()
slipstream.all_reduce(numpy.ones(4 + slipstream.rank()))
"""
HOROVOD = """
import torch, slipstream.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(4 + hvd.rank()))
"""
TORCH = """
import torch, torch.distributed as dist
dist.init_process_group("slipstream")
dist.all_reduce(torch.ones(4 + dist.get_rank()))
"""


@pytest.mark.parametrize(
    ("program", "full"),
    [
        pytest.param(NUMPY, False, id="numpy-False"),
        pytest.param(NUMPY, True, id="numpy-True"),
        pytest.param(HOROVOD, False, id="horovod-False"),
        pytest.param(TORCH, True, id="torch-True"),
        pytest.param(HOROVOD, True, id="horovod-True", marks=pytest.mark.slow),
        pytest.param(TORCH, False, id="torch-False", marks=pytest.mark.slow),
    ],
)
def test_a_mismatch_of_all_ranks_is_told_once(tag: str, tmp_path: Path, program: str, full: bool) -> None:
    if program != NUMPY:
        pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(program)
    options = ("-np", "3", "--start-timeout", "200", "--output-dir", str(tmp_path / "out"))
    option = ["--full-traceback"] if full else []
    command = (*options, *option, "--", sys.executable, str(tmp_path / "train.py"))
    job = launch(tag, *command, OMP_NUM_THREADS="1")
    _, err = job.communicate(timeout=240)
    assert job.returncode == 1
    said = "Mismatch: " + ("Mismatched allreduce tensor shapes" if program == HOROVOD else "operation #0")
    assert err.splitlines()[-1].startswith(f"    slipstream.base.errors.{said}"), err
    errors = [(tmp_path / "out" / f"rank.{rank}" / "stderr").read_text() for rank in range(3)]
    raised = sum("Traceback (most recent call last)" in text for text in errors)
    assert raised > 1, errors
    assert all(said in text for text in errors if "Traceback" in text)
    assert err.count("Traceback (most recent call last)") == (raised if full else 1), err
    assert err.count(said) == (raised + 1 if full else 1), err
    assert err.count("slipstream: raised as well: Mismatch on rank") == (0 if full else 1), err
    assert (f"{os.sep}slipstream{os.sep}comm{os.sep}" in err) == full


# Rank 1 finishes, with or without a link, and rank 0 waits for it.
EARLY = """
import os, sys, time
import numpy, slipstream
slipstream.init()
if "linked" in sys.argv:
    slipstream.all_reduce(numpy.ones(4))
if slipstream.rank() == 1:
    print(os.getpid(), file=open(sys.argv[1] + ".new", "w"), flush=True)
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    sys.exit()
while not os.path.exists(sys.argv[1]) or os.path.exists(f"/proc/{open(sys.argv[1]).read().strip()}/fd/0"):
    time.sleep(0.01)
slipstream.all_reduce(numpy.ones(4))
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("link", ["linked", "unlinked"])
def test_a_rank_that_finished_while_others_wait_is_the_last_word(
    tag: str, tmp_path: Path, transport: str, link: str
) -> None:
    options = ("-np", "2", "--transport", transport)
    code, _, err = run(tag, *options, "--", sys.executable, "-c", EARLY, str(tmp_path / "gone"), link)
    assert code == 1
    assert "PeerLost: rank 1 (host localhost) " in err
    assert err.splitlines()[-1] == (
        "slipstream: rank 1 finished (exit code 0); rank 0 still waited for it. "
        "If rank 1 ran fewer steps: give all ranks the same number of batches"
    )


@pytest.mark.parametrize("full", [False, True])
def test_own_frames_are_shown_on_demand(tag: str, full: bool) -> None:
    option = ["--full-traceback"] if full else []
    program = "import slipstream; slipstream.rank()"  # raises in our code: init has not been called
    code, _, err = run(tag, "-np", "1", *option, "--", sys.executable, "-c", program)
    assert code == 1
    assert ("job.py" in err) == full
    assert "slipstream.init()" in err.splitlines()[-1]


def test_a_rank_that_ends_without_init_is_named_to_those_that_wait(tag: str) -> None:
    code = 'import os\nif os.environ["RANK"] == "0":\n    import slipstream\n    slipstream.init()'
    status, _, err = run(tag, "-np", "2", "--", sys.executable, "-c", code)
    assert status == 1
    said = "PeerLost: rank 1 finished (exit code 0) and has not joined: every rank must call slipstream.init "
    assert said in err.splitlines()[-1], err


def test_a_report_that_nests_too_deep_ends_no_launcher(tag: str) -> None:
    program = "import os; os.write(int(os.environ['SLIPSTREAM_REPORT'].split(':')[0]), b'[' * 60_000)"
    code, out, err = run(tag, "-np", "1", "--", sys.executable, "-c", program)
    assert (code, out, err) == (0, "", "")


STOPPED = """
import os, signal, sys, time
pid, ended = sys.argv[1:]
if os.environ["RANK"] == "1":
    def end(*_):
        open(ended, "w").close()
        os._exit(0)
    signal.signal(signal.SIGTERM, end)
    with open(pid + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(pid + ".new", pid)
    os.kill(os.getpid(), signal.SIGSTOP)
while not os.path.exists(pid) or open(f"/proc/{open(pid).read()}/stat").read().rpartition(")")[2].split()[0] != "T":
    time.sleep(0.01)
raise ValueError("bad batch 17")
"""


def test_a_rank_that_is_stopped_is_asked_to_end_like_the_others(tag: str, tmp_path: Path) -> None:
    command = (sys.executable, "-c", STOPPED, str(tmp_path / "pid"), str(tmp_path / "ended"))
    code, _, err = run(tag, "-np", "2", "--", *command)
    assert code == 1
    assert err.splitlines()[-1].strip() == "ValueError: bad batch 17", err
    assert (tmp_path / "ended").exists()
