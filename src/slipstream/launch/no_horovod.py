"""What to do when a script finds no Horovod, or another one than slipstream's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["horovod_cure"]

_MISSING = re.compile(r"ModuleNotFoundError: No module named 'horovod(\.\w+)*'")
_PYTHON = re.compile(r"python[\d.]*")
_WITH_VALUE = ("-W", "-X")


def horovod_cure(error: str, argv: Sequence[str], folder: Path | None, *, asked: bool) -> str:
    """The cure for a rank's ``error``, if that is a module of Horovod that is not there; else "".

    ``argv``: the job's command. ``folder``: where it runs, if that is on this machine. ``asked``: with --horovod.
    """
    if not _MISSING.match(error):
        return ""
    flags, script = _python(argv)
    if not asked:
        if script.startswith("-m slipstream."):  # a function of `slipstream.run`
            return ""
        return (
            "add --horovod before --, and the script's Horovod is slipstream: "
            "slipstream run --horovod ... -- python train.py"
        )
    for flag in flags:
        if not flag.startswith(("--", *_WITH_VALUE)) and (found := re.search("[IE]", flag)):
            return (
                f"python -{found[0]} ignores PYTHONPATH, by which --horovod makes 'import horovod' slipstream: "
                f"leave -{found[0]} out"
            )
    hiding = None if folder is None or not _PYTHON.fullmatch(_name(argv)) else _beside(folder, script)
    if hiding is not None:
        return f"{hiding} hides the package horovod of slipstream: give it another name"
    return (
        "something hides the package horovod of slipstream: python -I and -E ignore PYTHONPATH, and a folder "
        "horovod beside the script comes before it"
    )


def _name(argv: Sequence[str]) -> str:
    return Path(argv[0]).name


def _python(argv: Sequence[str]) -> tuple[list[str], str]:
    """The flags of a call of Python, and what it runs: a file, ``-c``, or ``-m`` with a module."""
    flags: list[str] = []
    words = iter(argv[1:] if _PYTHON.fullmatch(_name(argv)) else ())
    for word in words:
        if not word.startswith("-"):
            return flags, word
        if word in ("-c", "-m"):
            return flags, "-c" if word == "-c" else f"-m {next(words, '')}"
        flags.append(word)
        if word in _WITH_VALUE:
            next(words, "")
    return flags, "-c"


def _beside(folder: Path, script: str) -> Path | None:
    """The package or module ``horovod`` that Python finds first, because it stands beside what runs."""
    where = folder if script.startswith("-") else (folder / script).resolve().parent
    ours = (where / "horovod", where / "horovod.py")
    if (ours[0] / "__init__.py").is_file():
        return ours[0]
    return ours[1] if ours[1].is_file() else None
