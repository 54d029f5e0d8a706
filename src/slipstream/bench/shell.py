"""Runs slipstream's own commands for scenarios that are made of them, in labs too."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.bench.record import Record

__all__ = ["SLIPSTREAM", "WrongResult", "bench_record", "in_lab", "last_object"]

SLIPSTREAM = (sys.executable, "-m", "slipstream")


class WrongResult(RuntimeError):
    """A sum or a gradient was not what it must be."""


def in_lab(
    options: Sequence[str], command: Sequence[str], settings: Mapping[str, str] | None = None
) -> list[str]:
    """``command`` in a lab with these options, with variables of the environment."""
    variables = [f"{name}={value}" for name, value in (settings or {}).items()]
    set_first = ["env", *variables] if variables else []
    return [*SLIPSTREAM, "lab", "run", "-q", *options, "--", *set_first, *command]


def bench_record(
    arguments: Sequence[str],
    lab: Sequence[str] | None = None,
    settings: Mapping[str, str] | None = None,
    stdout: Any = None,
) -> Record:
    """The record of ``slipstream bench`` with these arguments. Its other output goes to ``stdout``.

    It runs in a lab if that is given. Prints the command. Raises `WrongResult`, or subprocess.CalledProcessError when
    it fails otherwise.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.json"
        command = [*SLIPSTREAM, "bench", *arguments, "--json", str(path)]
        if lab is not None:
            command = in_lab(lab, command, settings)
        print(
            "$",
            shlex.join(command).replace(shlex.join(SLIPSTREAM), "slipstream"),
            file=sys.stderr,
            flush=True,
        )
        code = subprocess.run(command, check=False, stdout=stdout).returncode
        if code == 1 and path.exists():
            raise WrongResult(shlex.join(arguments))
        if code:
            raise subprocess.CalledProcessError(code, command)
        record: Record = json.loads(path.read_text(encoding="utf-8"))
    return record


def last_object(command: Sequence[str], env: Mapping[str, str] | None = None) -> Any:
    """The JSON in the last line that ``command`` prints; subprocess.CalledProcessError when it fails."""
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout
    return json.loads(out.splitlines()[-1])
