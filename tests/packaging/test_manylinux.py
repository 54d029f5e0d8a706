"""`make wheel`: the wheel needs no more of a system than its tag says, and works where glibc is older."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from slipstream import _core

ROOT = Path(__file__).resolve().parents[2]
MAKER = ROOT / ".ci" / "wheel.py"
OLD_ROOT = ROOT / "build" / "old-root"  # kept: it takes minutes to make
OLD_PYTHON = (3, 11)

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the tags are of x86-64")

WORKER = textwrap.dedent(
    """
    import platform
    import numpy as np
    import slipstream

    slipstream.init()
    x = np.arange(1 << 20, dtype=np.float32)
    assert np.array_equal(slipstream.all_reduce(x), 2 * x)
    slipstream.barrier()
    print("kernels for", slipstream._core.cpu_level(), flush=True)
    print("sum is right with", *platform.libc_ver(), "on rank", slipstream.rank(), flush=True)
    slipstream.shutdown()
    """
)

TORCH_WORKER = textwrap.dedent(
    """
    import torch
    import torch.distributed as dist

    dist.init_process_group("slipstream")
    x = torch.full((1000,), 1.0 + dist.get_rank())
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((1000,), 3.0))
    print("sum is right on rank", dist.get_rank(), flush=True)
    dist.destroy_process_group()
    """
)


def run(*command: str | Path, **options: object) -> str:
    """Runs it and returns what it printed; a failure shows that too."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}"
    return str(done.stdout)


def check(*wheels: Path) -> str:
    """What `.ci/wheel.py --check` says of them: nothing if all is well."""
    pytest.importorskip("elftools")
    command = [sys.executable, str(MAKER), "--check", *map(str, wheels)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == int(bool(done.stderr))
    return done.stderr


def pack(wheel: Path, files: dict[str, bytes]) -> Path:
    """Writes a wheel of these files."""
    (info,) = {name.partition("/")[0] for name in files if ".dist-info/" in name} or {"none.dist-info"}
    record = ""
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(data)}\n"
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return wheel


def test_the_check_compares_symbols_with_the_tag(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("slipstream._core")
    assert spec is not None
    assert spec.origin is not None
    files = {"slipstream/_core.so": Path(spec.origin).read_bytes()}
    old, new, none = (
        pack(tmp_path / f"slipstream-1-{tag}.whl", files)
        for tag in (
            "cp311-cp311-manylinux_2_5_x86_64",
            "cp311-cp311-manylinux_2_99_x86_64",
            "cp311-cp311-linux_x86_64",
        )
    )
    assert re.search(r"_core\.so needs GLIBC_2\.\d+\n$", check(old))
    assert check(new) == ""
    assert "no manylinux tag" in check(none)
    assert "no module in it" in check(pack(tmp_path / "empty-1-py3-none-manylinux_2_28_x86_64.whl", {}))


def test_what_was_made_keeps_its_promise() -> None:
    wheels = list((ROOT / "dist").glob("*manylinux*.whl"))
    if not wheels:
        pytest.skip("dist/ has no wheel: make wheel")
    assert check(*wheels) == ""


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def make_index(folder: Path, wheels: Iterable[Path]) -> str:
    """A package index (PEP 503) of these files; returns its address."""
    for wheel in wheels:
        project = folder / normalized(wheel.name.partition("-")[0])
        project.mkdir(parents=True, exist_ok=True)
        with (project / "index.html").open("a") as page:
            page.write(f'<a href="{wheel.resolve().as_uri()}">{wheel.name}</a><br>\n')
    return folder.as_uri()


def hollow_wheel(folder: Path, name: str) -> Path:
    """A wheel with the metadata of an installed distribution and nothing else."""
    found = importlib.metadata.distribution(name)
    stem = f"{normalized(name).replace('-', '_')}-{found.version}"
    metadata = found.read_text("METADATA")
    assert metadata is not None
    tags = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {f"{stem}.dist-info/METADATA": metadata.encode(), f"{stem}.dist-info/WHEEL": tags}
    return pack(folder / f"{stem}-py3-none-any.whl", files)


def unconfigured() -> dict[str, str]:
    """An environment in which pip knows only what its command line says."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PIP_")} | {"PIP_CONFIG_FILE": os.devnull}


def test_the_extra_brings_torch_and_the_base_does_not(tmp_path: Path) -> None:
    """An index with the metadata of all that is installed here answers pip; nothing is downloaded."""
    pytest.importorskip("torch")
    names = {normalized(found.metadata["Name"]) for found in importlib.metadata.distributions()}
    index = make_index(
        tmp_path / "simple", (hollow_wheel(tmp_path, name) for name in sorted(names - {"pip"}))
    )
    asked = {}
    for wanted in ("slipstream", "slipstream[torch]"):
        report = tmp_path / "report.json"
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--dry-run",
            "--ignore-installed",
            "--no-cache-dir",
        ]
        run(*command, "--report", report, "--index-url", index, wanted, env=unconfigured())
        entries = json.loads(report.read_text())["install"]
        asked[wanted] = {entry["metadata"]["name"].lower(): entry["metadata"]["version"] for entry in entries}
    assert asked["slipstream"].keys() == {"slipstream", "numpy", "click"}
    assert asked["slipstream[torch]"].items() > asked["slipstream"].items()
    assert asked["slipstream[torch]"]["torch"] == importlib.metadata.version("torch")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `make wheel` makes for this interpreter."""
    for module in ("ziglang", "auditwheel", "elftools"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"no {module}: make wheel installs it")
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, MAKER, out)
    (made,) = out.iterdir()
    return made


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_installs_with_torch_from_an_index(wheel: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip"]
    pinned = [
        *pip,
        "download",
        "-q",
        "-d",
        tmp_path / "wheels",
        "-c",
        ROOT / "constraints.txt",
        "--only-binary=:all:",
    ]
    (torch,) = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    local = subprocess.run(
        [str(word) for word in [*pinned, "--no-index", "--no-deps", torch]], capture_output=True, check=False
    )
    if local.returncode != 0:
        pytest.skip(f"no local wheel of {torch}: one from an index would bring gigabytes of CUDA")
    run(*pinned, "--find-links", tmp_path / "wheels", "--prefer-binary", torch, "numpy", "click")
    index = make_index(tmp_path / "simple", [wheel, *(tmp_path / "wheels").iterdir()])
    run(sys.executable, "-m", "venv", tmp_path / "env")
    bin_folder = tmp_path / "env" / "bin"
    command = [bin_folder / "python", "-m", "pip", "install", "-q", "--no-cache-dir", "--index-url", index]
    run(*command, "slipstream[torch]", env=unconfigured())
    script = tmp_path / "worker.py"
    script.write_text(TORCH_WORKER)
    printed = run(
        bin_folder / "slipstream", "run", "-np", "2", "--", bin_folder / "python", script, cwd=tmp_path
    )
    assert {f"sum is right on rank {rank}" for rank in range(2)} <= set(re.findall("sum is.*", printed)), (
        printed
    )


@pytest.fixture(scope="module")
def old(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command line before a command that is to run in the old system, where the wheel is installed."""
    if sys.version_info[:2] != OLD_PYTHON:
        pytest.skip("the old system's Python is {}.{}".format(*OLD_PYTHON))
    if os.geteuid() != 0:
        pytest.skip("only root makes and enters another root")
    if shutil.which("debootstrap", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("no debootstrap")
    run(ROOT / "tests" / "packaging" / "old_root", OLD_ROOT)
    wheels = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "download", "-q", "-d", wheels, "-c", ROOT / "constraints.txt"]
    kinds = [f"--platform=manylinux_2_{minor}_x86_64" for minor in range(31, 16, -1)]
    run(*command, "--only-binary=:all:", "--python-version=3.11", *kinds, "numpy", "click")
    shutil.rmtree(OLD_ROOT / "wheels", ignore_errors=True)
    shutil.copytree(wheels, OLD_ROOT / "wheels")
    shutil.copy(wheel, OLD_ROOT / "wheels")
    (OLD_ROOT / "worker.py").write_text(WORKER)
    mounts = f"mount --bind /proc {OLD_ROOT}/proc && mount --bind /dev {OLD_ROOT}/dev"
    enter = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec chroot {OLD_ROOT} "$@"', "sh"]
    run(*enter, "/usr/local/bin/python3", "-m", "venv", "--clear", "/venv")
    run(
        *enter,
        "/venv/bin/python",
        "-m",
        "pip",
        "install",
        "-q",
        "--no-index",
        "--find-links=/wheels",
        "slipstream",
    )
    return enter


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_two_ranks_on_an_old_system(old: list[str], transport: str) -> None:
    variables = [
        "env",
        "-i",
        "PATH=/venv/bin:/usr/bin:/bin",
        "HOME=/root",
        f"SLIPSTREAM_TRANSPORT={transport}",
    ]
    command = ["slipstream", "run", "-np", "2", "--", "python", "/worker.py"]
    printed = run(*old, *variables, *command, timeout=300)
    assert {f"sum is right with glibc 2.31 on rank {rank}" for rank in range(2)} <= set(
        re.findall("sum is.*", printed)
    ), printed
    # the compiler of wheels must find what this processor can do, as the compiler of this machine does
    assert f"kernels for {_core.cpu_level()}\n" in printed, printed
