"""JAX programs that know nothing of slipstream, under `slipstream run`: results, failures, and what they find."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import slipstream
from launch.test_run import launch, run, tag
from reducer import service

__all__ = ["tag"]

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "jax_unmodified_digits.py"
NAMES = HERE.parents[1] / "native" / "mpi_trampoline"
LIBRARY = Path(slipstream.__file__).parent / "libslipstream_mpi.so"

pytest.importorskip("jax")


def job(
    tag: str, size: int, program: Path, *arguments: str, options: tuple[str, ...] = ()
) -> tuple[int, str, str]:
    """Exit code, output and errors of a program on ``size`` processes, each with one CPU device."""
    cpu = ("-e", "JAX_PLATFORMS=cpu", "-e", "OMP_NUM_THREADS=1")
    command = [sys.executable, str(program), *arguments]
    process = launch(tag, "-np", str(size), *cpu, *options, "--", *command)
    out, err = process.communicate(timeout=250)  # JAX compiles a lot
    return process.returncode, out, err


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_collectives_are_those_of_numpy(tag: str, size: int) -> None:
    code, out, err = job(tag, size, HERE / "jax_rank.py")
    assert code == 0, err
    told = sorted(line for line in out.splitlines() if "all is right" in line)
    assert told == [f"[{rank}] rank {rank} of {size}: all is right" for rank in range(size)]
    assert "Gloo" not in out + err


@pytest.mark.parametrize("devices", [1, 2])
def test_reducers_serve_sums_over_all_processes(tag: str, tmp_path: Path, devices: int) -> None:
    with service.started(tmp_path) as one:
        settings = {
            "SLIPSTREAM_REDUCERS": f"127.0.0.1:{one.port}",
            "SLIPSTREAM_REDUCER_SECRET": service.SECRET.hex(),
            "SLIPSTREAM_TRANSPORT": "tcp",
            "JAX_NUM_CPU_DEVICES": str(devices),
        }
        options = tuple(word for name, value in settings.items() for word in ("-e", f"{name}={value}"))
        code, out, err = job(tag, 3, HERE / "jax_reducers_rank.py", options=options)
        assert code == 0, err
        shares = [float(share) for share in re.findall(r"share: ([\d.]+)", out)]
        assert len(shares) == 3
        assert min(shares) > 0, shares  # the ring between them carries the rest


def told(
    tag: str, kind: str, size: int, *options: str, program: str = "jax_faults_rank.py"
) -> dict[int, str]:
    """What each process is told of, which is an error as a rule, by rank."""
    _, out, err = job(tag, size, HERE / program, kind, options=options)
    found = dict(re.findall(r"^\[(\d)\] told: (.*)$", out, re.MULTILINE))
    assert found, out + err
    return {int(rank): text for rank, text in found.items()}


def test_a_killed_process_is_named(tag: str) -> None:
    assert re.search(r"PeerLost: rank 1 \(host .*\).*all_reduce", told(tag, "killed", 2, "--min-np", "1")[0])


def test_other_threads_go_on_while_a_process_waits_for_one_that_begins_late(tag: str, tmp_path: Path) -> None:
    options = ("-e", "SLIPSTREAM_TIMEOUT=40")
    _, out, err = job(tag, 2, HERE / "jax_faults_rank.py", "late", str(tmp_path / "seen"), options=options)
    assert sorted(re.findall(r"^\[(\d)\] told: (.*)$", out, re.MULTILINE)) == [("0", "2"), ("1", "2")], (
        out + err
    )


def test_programs_that_differ(tag: str) -> None:
    texts = told(tag, "mismatch", 2)
    assert texts.keys() == {0, 1}
    for text in texts.values():
        assert "Mismatch: operation #2 differs" in text
        assert "5 elements" in text
        assert "7 elements" in text


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("subsets", 3),
        ("subsets", 4),
        ("numbered", 3),
        ("orders", 2),
        ("orders", 3),
        ("alone", 3),
        ("meshes", 4),
        ("branches", 4),
        ("threads", 3),
        ("guarded", 2),
    ],
)
def test_groups_are_made_by_their_members_alone(tag: str, kind: str, size: int) -> None:
    texts = told(tag, kind, size, "-e", "SLIPSTREAM_TIMEOUT=60", program="jax_groups_rank.py")
    assert texts == dict.fromkeys(range(size), "all is right")


def test_a_process_killed_while_a_group_is_made_is_named(tag: str) -> None:
    texts = told(tag, "killed", 3, "--min-np", "1", program="jax_groups_rank.py")
    assert texts.keys() == {0, 2}
    assert all(re.search(r"PeerLost: rank 1 \(host .*MPI_Comm_split", text) for text in texts.values())


def test_a_process_that_does_not_come_to_its_group_is_named(tag: str) -> None:
    text = told(tag, "absent", 3, "-e", "SLIPSTREAM_TIMEOUT=6", program="jax_groups_rank.py")[0]
    assert "Timeout: JAX makes the group of processes 0,1, and some of them have not come" in text
    assert "each must run the computations that need it, in the same order" in text
    assert re.search(r"has waited .* for rank 1 ", text)


def test_a_process_that_ends_early_is_said_to(tag: str) -> None:
    text = told(tag, "early", 2, "-e", "SLIPSTREAM_TIMEOUT=6")[0]
    assert re.search(r"rank 1 .*barrier\(name='the end of the program: this process calls no more", text)


def test_groups_that_call_unlike_numbers_of_collectives_are_no_mistake(tag: str) -> None:
    assert told(tag, "loops", 4) == dict.fromkeys(range(4), "4.0")


def test_an_exception_of_one_process_ends_the_others(tag: str) -> None:
    """It does not wait at its end for those who wait for it."""
    assert re.search(r"rank 1 .*(left|ended|raised|aborted)", told(tag, "raises", 2, "--min-np", "1")[0])


@pytest.mark.parametrize("kind", ["killed", "shrinks"])
def test_survivors_of_a_killed_process_end_when_they_are_ready(tag: str, kind: str) -> None:
    """JAX alone takes 100 seconds, and then ends them with SIGABRT."""
    begun = time.monotonic()
    code, out, err = job(tag, 3, HERE / "jax_ends_rank.py", kind, options=("--min-np", "1"))
    assert time.monotonic() - begun < 80
    assert code == 0, out + err  # one has succeeded
    assert re.search(r"^\[2\] PeerLost: .*; saved$", out, re.MULTILINE), out + err
    assert ("rank 0 on host localhost exited with code 1" in err) == (kind == "killed")
    assert "rank 1 on host localhost was ended by signal 9 (SIGKILL)" in err
    assert err.count("was ended by signal") == 1, err


@pytest.mark.parametrize("kind", ["together", "shuts_down", "early"])
def test_processes_that_could_do_without_others_leave_together(tag: str, kind: str) -> None:
    code, out, err = job(tag, 3, HERE / "jax_ends_rank.py", kind, options=("--min-np", "1"))
    assert code == 0, out + err
    assert sorted(re.findall(r"^\[\d\] all is right$", out, re.MULTILINE)) == [
        f"[{rank}] all is right" for rank in range(3)
    ]
    assert "was ended by signal" not in err


@pytest.mark.parametrize("kind", ["raises_first", "raises_last"])
def test_an_exception_is_told_where_processes_could_do_without_others(tag: str, kind: str) -> None:
    """JAX's end of the one that raised does not wait for those that wait for it."""
    code, out, err = job(tag, 3, HERE / "jax_ends_rank.py", kind, options=("--min-np", "1"))
    assert code == 0, out + err  # the others have succeeded
    raised = 0 if kind == "raises_first" else 2
    told = re.findall(rf"^\[(\d)\] PeerLost: rank {raised} .* raised ValueError", out, re.MULTILINE)
    assert sorted(told) == [str(rank) for rank in range(3) if rank != raised], out + err
    assert "was ended by signal" not in err


def test_a_job_that_loses_ranks_has_jax_recoverable(tag: str, tmp_path: Path) -> None:
    (tmp_path / "jax_plugins").mkdir()
    other = shutil.copy(LIBRARY, tmp_path / "another_mpi.so")
    script = "import jax; print(jax.config.jax_enable_recoverability)"

    def recoverable(*options: str) -> str:
        code, out, err = run(tag, "-np", "2", *options, "--", sys.executable, "-c", script)
        assert code == 0, err
        (found,) = set(re.findall(r"^\[\d\] (.*)$", out, re.MULTILINE))
        return found

    loses = ("--min-np", "1")
    plugin = ("-e", f"PYTHONPATH={tmp_path}")
    assert recoverable(*loses) == "True"
    assert recoverable() == "False"
    assert recoverable("--min-np", "2") == "False"
    assert recoverable(*loses, "-e", "JAX_ENABLE_RECOVERABILITY=0") == "False"
    assert recoverable(*loses, "-e", "JAX_CPU_COLLECTIVES_IMPLEMENTATION=gloo") == "False"
    assert recoverable(*loses, "-e", f"MPITRAMPOLINE_LIB={other}") == "False"
    assert recoverable(*loses, *plugin) == "False"
    assert recoverable(*loses, *plugin, "-e", "JAX_PLATFORMS=cpu") == "True"


def test_the_example_walks_one_curve_and_learns(tag: str, tmp_path: Path) -> None:
    curves = {}
    for size in (1, 2):
        file = tmp_path / f"{size}.json"
        code, out, err = job(tag, size, EXAMPLE, "--dtype=float64", f"--loss-file={file}")
        assert code == 0, err
        accuracy = re.search(r"accuracy: ([\d.]+)", out)
        assert accuracy is not None
        assert float(accuracy[1]) >= 0.96
        curves[size] = json.loads(file.read_text())
    assert len(curves[1]) == 880
    assert curves[2] == pytest.approx(curves[1], rel=1e-9)


def test_the_user_chooses_other_collectives(tag: str) -> None:
    variables = ("JAX_CPU_COLLECTIVES_IMPLEMENTATION", "MPITRAMPOLINE_LIB")
    script = f"import os; print([os.environ.get(name) for name in {variables}])"
    command = ("--", sys.executable, "-c", script)
    assert run(tag, "-np", "1", *command)[1] == f"[0] ['mpi', '{LIBRARY}']\n"
    gloo = run(tag, "-np", "1", "-e", "JAX_CPU_COLLECTIVES_IMPLEMENTATION=gloo", *command)
    assert gloo[1] == "[0] ['gloo', None]\n"
    other = run(tag, "-np", "1", "-e", "MPITRAMPOLINE_LIB=/its/own.so", *command)
    assert other[1] == "[0] ['mpi', '/its/own.so']\n"


def names() -> dict[str, str]:
    """Every symbol of the ABI, and whether it is a constant or a function."""
    found = {}
    for kind in ("constants", "functions"):
        for macro, name in re.findall(r"^([A-Z]+)\((\w+)", (NAMES / f"{kind}.def").read_text(), re.MULTILINE):
            found[f"{'MPIXABI' if macro == 'EXTENSION' else 'MPIABI'}_{name}"] = kind
    return found


def test_the_library_has_the_whole_abi() -> None:
    elf = pytest.importorskip("elftools.elf.elffile")
    with LIBRARY.open("rb") as file:
        symbols = elf.ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        exported = {one.name: one["st_info"]["type"] for one in symbols if one["st_shndx"] != "SHN_UNDEF"}
    wanted = names()
    assert (len(wanted), list(wanted.values()).count("constants")) == (635, 260)
    types = {"constants": "STT_OBJECT", "functions": "STT_FUNC"}
    assert {name for name, kind in wanted.items() if exported.get(name) != types[kind]} == set()
    assert (
        not {name for name in exported if name.startswith(("MPI", "mpi"))}
        - wanted.keys()
        - {
            "mpiwrapper_export_fortran_constants_",
            *(
                f"{what}_version_{part}"
                for what in ("mpiabi", "mpiwrapper")
                for part in ("major", "minor", "patch")
            ),
        }
    )


def test_what_is_not_supported_says_so_once() -> None:
    script = f"""
import ctypes
library = ctypes.CDLL({str(LIBRARY)!r})
code = [library.MPIABI_Win_fence(0, 0), library.MPIABI_Win_fence(0, 0)]
wanted = ctypes.c_int.in_dll(library, "MPIABI_ERR_UNSUPPORTED_OPERATION").value
assert code == [wanted] * 2, code
text, length = ctypes.create_string_buffer(1024), ctypes.c_int()
library.MPIABI_Error_string(wanted, text, ctypes.byref(length))
print(text.value.decode())
assert library.MPIABI_Comm_f2c(3) == 0
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    line = "MPI_Win_fence is not supported by slipstream's MPI library"
    assert (ended.stdout, ended.stderr.splitlines()[0]) == (f"{line}\n", f"slipstream: {line}"), ended.stderr
    assert len(ended.stderr.splitlines()) == 2  # and the conversion


def test_no_call_needs_a_job() -> None:
    """Before MPI_Init and after MPI_Finalize, when XLA frees what it has, nothing is touched."""
    library = ctypes.CDLL(str(LIBRARY))
    world = ctypes.c_size_t.in_dll(library, "MPIABI_COMM_WORLD")
    made, rank = ctypes.c_size_t(), ctypes.c_int(7)
    assert library.MPIABI_Comm_split(world, 0, 0, ctypes.byref(made)) != 0
    assert made.value not in (0, world.value)
    assert library.MPIABI_Comm_rank(made, ctypes.byref(rank)) != 0
    assert rank.value == 0
    library.MPIABI_Finalize()
    assert library.MPIABI_Comm_free(ctypes.byref(made)) == 0
    assert made.value == ctypes.c_size_t.in_dll(library, "MPIABI_COMM_NULL").value
