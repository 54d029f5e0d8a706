"""Packs this folder as a wheel (PEP 517): one module, and what dist-info says. It needs no other package."""

from __future__ import annotations

import base64
import hashlib
import tarfile
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
METADATA = (HERE / "dist-info" / "METADATA").read_text(encoding="utf-8")
VERSION = METADATA.partition("\nVersion: ")[2].partition("\n")[0]
NAME = f"slipstream_horovod-{VERSION}"
WHEEL = "Wheel-Version: 1.0\nGenerator: packing\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    """Writes the wheel and returns its name."""
    files = {"horovod/__init__.py": (HERE / "horovod" / "__init__.py").read_text(encoding="utf-8")}
    files[f"{NAME}.dist-info/METADATA"] = METADATA
    files[f"{NAME}.dist-info/entry_points.txt"] = (HERE / "dist-info" / "entry_points.txt").read_text()
    files[f"{NAME}.dist-info/WHEEL"] = WHEEL
    record = f"{NAME}.dist-info/RECORD"
    files[record] = "".join(f"{name},{_digest(text)}\n" for name, text in files.items()) + f"{record},,\n"
    wheel = f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in files.items():
            packed.writestr(zipfile.ZipInfo(name), text)
    return wheel


def _digest(text: str) -> str:
    data = text.encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest},{len(data)}"


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """Writes the sources and returns the name of the file."""
    name = f"{NAME}.tar.gz"
    with tarfile.open(Path(sdist_directory) / name, "w:gz") as packed:
        for part in ("pyproject.toml", "packing.py", "dist-info", "horovod/__init__.py"):
            packed.add(HERE / part, f"{NAME}/{part}")
        packed.add(HERE / "dist-info" / "METADATA", f"{NAME}/PKG-INFO")
    return name
