"""``horovodrun``: takes the options of Horovod's command, and starts the job by `slipstream run --horovod`."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from slipstream.base.misspelt import did_you_mean
from slipstream.base.protocol import HOROVOD, package_version
from slipstream.cli.horovod_flags import FLAGS, SECTIONS, Flag, meaning
from slipstream.launch.hosts import discovered, shown_hosts

__all__ = ["Translation", "main", "not_in_config", "of_config", "translated"]

_USAGE = """Usage: horovodrun [OPTIONS] COMMAND ...

Runs COMMAND as the ranks of a job, as Horovod's command does, by slipstream run --horovod.

Examples:
  horovodrun -np 4 python train.py
  horovodrun -np 8 -H node1:4,node2:4 python train.py
  horovodrun --check-build

Options, and what they are to slipstream run:
"""
_BUILD = """\
Horovod v{stands_for}, by slipstream v{version}:

Available Frameworks:
    [ ] TensorFlow
    [{torch}] PyTorch
    [ ] MXNet

Available Controllers:
    [ ] MPI
    [X] Gloo

Available Tensor Operations:
    [ ] NCCL
    [ ] DDL
    [ ] CCL
    [ ] MPI
    [X] Gloo

Gloo stands for slipstream's own engine, which needs no MPI."""

_ALIKE = 0.75  # all options have their dashes in common, and many a word
_NAMES = {name: flag for flag in FLAGS for name in flag.names.split()}
_OWN = {
    "-h": "help",
    "--help": "help",
    "-v": "version",
    "--version": "version",
    "-cb": "check-build",
    "--check-build": "check-build",
    "--config-file": "config-file",
}


@dataclass
class Translation:
    """A command line of horovodrun, for `slipstream run`: ``options``, ``command``, and ``notes`` for people.

    ``asks`` is what is asked for instead of a job: help, version or check-build.
    """

    options: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    asks: str = ""

    @property
    def words(self) -> list[str]:
        """What to give to `slipstream`."""
        return ["run", "--horovod", *self.options, "--", *self.command]


def main() -> None:
    """The command ``horovodrun``."""
    try:
        found = translated(sys.argv[1:])
    except ValueError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    if found.asks:
        click.echo({"help": _help, "version": _version, "check-build": _build}[found.asks]())
        sys.exit(0)
    for note in found.notes:
        click.echo(f"horovodrun: {note}", err=True)
    if "-v" in found.options:
        click.echo(f"horovodrun: this is {shlex.join(['slipstream', *found.words])}", err=True)
    from slipstream.cli.main import main as slipstream  # by far the most of what is to be imported

    slipstream(found.words, prog_name="horovodrun")


def translated(argv: Sequence[str]) -> Translation:
    """What a command line means; ValueError, with a hint, for what slipstream does not take."""
    left, found = list(argv), Translation()
    given: list[tuple[str, list[str]]] = []
    configured: list[tuple[str, list[str]]] = []
    while left and left[0].startswith("-") and left[0] != "--":
        word, value = _cut(left.pop(0))
        name = _whole_name(word)
        count = 1 if name == "--config-file" else 0 if name in _OWN else _NAMES[name].words
        values = [value] if value is not None else [left.pop(0) for _ in range(min(count, len(left)))]
        if len(values) != count:
            raise ValueError(f"{word} takes {count or 'no'} value{'s' * (count > 1)}")
        if name == "--config-file":
            config = _loaded(Path(values[0]))
            configured += of_config(config)
            found.notes += not_in_config(config)
        elif name in _OWN:
            found.asks = found.asks or _OWN[name]
        else:
            given.append((name, values))
    found.command = left[1:] if left[:1] == ["--"] else left
    for name, values in _with_hosts(
        _joined([*configured, *given])
    ):  # of two, `slipstream run` takes the last
        _add(found, name, _NAMES[name], values)
    return found


def _add(found: Translation, name: str, flag: Flag, values: list[str]) -> None:
    if flag.refused:
        raise ValueError(f"{name}: slipstream does not have it; {flag.refused}")
    if flag.ignored:
        found.notes.append(f"{name} has no meaning here: {flag.ignored}")
    found.options += [word.format(*values) for word in flag.becomes]


def _with_hosts(given: list[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
    """All, but a script that names hosts as the hosts that it names."""
    slots = next((one[1][0] for one in given if one[0] == "--slots-per-host"), "1")
    if not slots.isdecimal():
        raise ValueError(f"--slots-per-host takes a number, not {slots!r}")
    return [
        (
            name,
            [shown_hosts(discovered(values[0], int(slots)))] if name == "--host-discovery-script" else values,
        )
        for name, values in given
    ]


def _joined(given: Iterable[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
    """All, but several --network-interface as one."""
    kept = [one for one in given if not one[0].startswith("--network-interface")]
    interfaces = [one[1][0] for one in given if one[0].startswith("--network-interface")]
    return [*kept, *([("--network-interfaces", [",".join(interfaces)])] if interfaces else [])]


def _cut(word: str) -> tuple[str, str | None]:
    """A word as an option and its value: ``--name=value``, ``-np4``, ``-Hhost:2``."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, value if equals else None
    short = [name for name, flag in _NAMES.items() if not name.startswith("--") and flag.words == 1]
    if word not in _NAMES and word not in _OWN:
        for name in sorted(short, key=len, reverse=True):
            if word.startswith(name):
                return name, word[len(name) :].removeprefix("=")
    return word, None


def _whole_name(word: str) -> str:
    """The option that a word, or a beginning that no other has, stands for."""
    known = [*_NAMES, *_OWN]
    if word in known:
        return word
    begun = [name for name in known if word.startswith("--") and name.startswith(word)]
    if begun and len({_NAMES.get(name, name) for name in begun}) == 1:
        return begun[0]
    if begun:
        raise ValueError(f"{word} may be {', '.join(begun)}")
    if any(word in option.opts for option in _options_of_run()):
        raise ValueError(
            f"{word} is an option of slipstream run: slipstream run --horovod {word} ... -- COMMAND"
        )
    raise ValueError(
        f"horovodrun has no option {word}{did_you_mean(word, known, _ALIKE)}; horovodrun --help lists them"
    )


def _options_of_run() -> list[click.Parameter]:
    return list(importlib.import_module("slipstream.cli.main").run.params)


# ---- --config-file ----


def of_config(config: Any) -> list[tuple[str, list[str]]]:
    """The options that a configuration of Horovod stands for; ValueError for what it may not hold."""
    found: list[tuple[str, list[str]]] = []
    if not isinstance(config, dict):
        raise ValueError("--config-file: expected sections, such as params: and timeline:")
    for section, content in config.items():
        if section == "controller":
            found.append((_option(f"--{content}", "controller"), []))
        elif section not in SECTIONS and not isinstance(content, dict):
            continue  # see `not_in_config`
        elif section not in SECTIONS or not isinstance(content, dict):
            raise ValueError(f"--config-file: no section {section}{did_you_mean(str(section), SECTIONS)}")
        else:
            found += [_configured(section, key, value) for key, value in content.items() if value is not None]
    return found


def not_in_config(config: dict[Any, Any]) -> list[str]:
    """A note for each key of a configuration that is no section: as with Horovod, it changes nothing."""
    return [
        f"--config-file: {key} is ignored: options stand in sections, such as params: and timeline:"
        for key, content in config.items()
        if key != "controller" and key not in SECTIONS and not isinstance(content, dict)
    ]


def _configured(section: str, key: str, value: Any) -> tuple[str, list[str]]:
    where, name = f"{section}.{key}", (SECTIONS[section] + str(key)).replace("_", "-")
    name = name.removesuffix("-enabled")
    if not isinstance(value, bool):
        return _option(f"--{name}", where), [str(value)]
    if name == "log-with-timestamp":
        return "--log-with-timestamp" if value else "--log-without-timestamp", []
    return _option(f"--{name}" if value else f"--no-{name}", where), []


def _option(name: str, where: str) -> str:
    if name not in _NAMES:
        raise ValueError(f"--config-file: horovodrun knows no {where}")
    return name


def _loaded(path: Path) -> Any:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise ValueError("--config-file needs a library for YAML: pip install pyyaml") from None
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"--config-file: cannot read {path}: {error}") from None


# ---- what is asked for instead of a job ----


def _help() -> str:
    own = [
        ("-v, --version", "prints the version"),
        ("-cb, --check-build", "prints which frameworks there are"),
        ("--config-file", "reads options from a file of Horovod, in YAML"),
    ]
    rows = [*own, *((flag.names.replace(" ", ", "), meaning(flag)) for flag in FLAGS)]
    return _USAGE + "\n".join(f"  {names:<50} {meaning}" for names, meaning in rows)


def _version() -> str:
    return f"{HOROVOD} (slipstream {package_version()})"


def _build() -> str:
    torch = "X" if find_spec("torch") is not None else " "
    return _BUILD.format(stands_for=HOROVOD, version=package_version(), torch=torch)


if __name__ == "__main__":
    main()
