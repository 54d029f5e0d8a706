"""The commands that help, the pages and our own messages tell people to type, and what can be said of them unrun."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from slipstream.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", "benchmarks/README.md", "examples/README.md"]
TUTORIALS = ("docs/tutorials", "docs/howto")  # run whole, by test_tutorials
HISTORY = {"docs/log.md"}  # what was typed once; options may have gone since
PROGRAMS = ("slipstream", "make", "python", "torchrun", "pip")
_ASSIGNMENT = re.compile(r"[A-Z_]+=\S+")


@dataclass(frozen=True)
class Command:
    """``text`` is one line of a shell; ``where`` is the help or the page that shows it."""

    text: str
    where: str

    @property
    def words(self) -> list[str]:
        """Its words without assignments before it and comments behind it."""
        words = shlex.split(self.text, comments=True)
        while words and _ASSIGNMENT.fullmatch(words[0]):
            words.pop(0)
        return words


def typed(text: str) -> bool:
    """Whether a line of a code block is a command that we can judge."""
    try:
        words = Command(text, "").words
    except ValueError:
        return False
    return len(words) > 1 and words[0] in PROGRAMS


def _joined(lines: Sequence[str]) -> Iterator[str]:
    """Lines with those that a backslash continues put together."""
    whole = ""
    for line in lines:
        whole += line.strip()
        if whole.endswith("\\"):
            whole = whole[:-1]
            continue
        yield whole
        whole = ""


def help_commands() -> list[Command]:
    """Every command that the help of `slipstream` and of its subcommands shows."""

    def walk(command: click.Command, name: str) -> Iterator[Command]:
        for text in (command.epilog, command.help):
            for line in _joined((text or "").splitlines()):
                if typed(line):
                    yield Command(line, f"{name} --help")
        if isinstance(command, click.Group):
            for word, sub in command.commands.items():
                yield from walk(sub, f"{name} {word}")

    return list(walk(main, "slipstream"))


def pages() -> list[Path]:
    """The pages whose commands must work."""
    found = [ROOT / name for name in PAGES if (ROOT / name).exists()]
    found += sorted((ROOT / "docs").rglob("*.md"))
    return [path for path in found if str(path.relative_to(ROOT)) not in HISTORY]


def _blocks(text: str) -> Iterator[str]:
    """The lines of code blocks: indented ones, and fenced ones that are not Python."""
    language: str | None = None
    lines = []
    for line in text.splitlines():
        fence = re.match(r"\s*```(\w*)", line)
        if fence:
            language = fence[1] if language is None else None
        elif language in ("", "sh", "bash", "console") or (language is None and re.match(r" {4}", line)):
            lines.append(line)
    yield from _joined(lines)


def page_commands() -> list[Command]:
    """Every command in a code block of a page."""
    found = []
    for path in pages():
        name = str(path.relative_to(ROOT))
        found += [Command(line, name) for line in _blocks(path.read_text(encoding="utf-8")) if typed(line)]
    return found


def mentioned() -> list[Command]:
    """Commands within a sentence: in backquotes on a page, or in the text of a message or docstring of ours."""
    found = []
    for path in pages():
        prose = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for match in re.finditer(r"`((?:slipstream|make|python|pip) [^`]+)`", prose):
            found.append(Command(" ".join(match[1].split()), str(path.relative_to(ROOT))))
    for path in sorted((ROOT / "src").rglob("*.py")):
        for text in _texts(ast.parse(path.read_text(encoding="utf-8"))):
            name = str(path.relative_to(ROOT))
            for match in re.finditer(
                r"(`*)(slipstream (?:" + "|".join(main.commands) + r")\b[^`:;,\"()\n]*)", text
            ):
                if match[1] or "examples:" not in text.lower():
                    found.append(Command(match[2].strip(" .:'"), name))
    return found


def _texts(tree: ast.Module) -> Iterator[str]:
    """All string constants; what an f-string fills in is NAME."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "NAME" for part in node.values]
            inside.update(id(part) for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


# ---- what can be said without running ----


def complaint(words: Sequence[str], *, whole: bool) -> str:
    """What is wrong with a command: an option or subcommand that does not exist, an argument that is refused; or "".

    ``whole``: nothing that the command needs may be missing; otherwise words such as SECONDS stand for anything. What
    `slipstream` itself starts is judged too.
    """
    if not whole:
        words = [re.sub(r"^[A-Z]{3,}$", "1", word) for word in words]
    if words[0] == "make":
        return _make_complaint(words[1:])
    if words[0] == "pip":
        return _pip_complaint(words[1:])
    if words[0] != "slipstream":
        return ""
    commands, rest = [list(words[1:])], ""
    while commands:
        rest = _slipstream_complaint(commands.pop(), whole, commands)
        if rest:
            break
    return rest


def _slipstream_complaint(words: list[str], whole: bool, inner: list[list[str]]) -> str:
    command: click.Command = main
    name = "slipstream"
    if any(word in (";", "&&") for word in words):
        return ""
    for at, word in enumerate(words):
        if word.endswith(";"):  # several commands in a line
            inner.append(words[at + 2 :])
            words = [*words[:at], word[:-1]]
            break
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        word = words.pop(0)
        if word not in command.commands:
            return f"{name} has no command {word!r}"
        command, name = command.commands[word], f"{name} {word}"
    if isinstance(command, click.Group) or (not whole and not words):
        return ""
    try:
        context = command.make_context(name, words, resilient_parsing=False)
    except click.MissingParameter as error:
        return error.format_message() if whole else ""
    except click.BadOptionUsage as error:
        return error.format_message() if whole else ""  # an option that is named without its value
    except click.ClickException as error:
        return f"{name}: {error.format_message()}"
    except click.exceptions.Exit:  # --help
        return ""
    started = [word for word in context.params.get("command") or () if word != "--"]
    if started[:1] == ["slipstream"]:
        inner.append(started[1:])
    return ""


def _make_complaint(words: Sequence[str]) -> str:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z_]+) *[:?]?=", text, re.MULTILINE))
    for word in words:
        known = word.partition("=")[0] in variables if "=" in word else word in targets
        if not known:
            return f"the Makefile has no {word!r}"
    return ""


def _pip_complaint(words: Sequence[str]) -> str:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = \[", section, re.MULTILINE))
    asked = {extra for word in words for extra in re.findall(r"(?:slipstream|\.)\[([\w,]+)\]", word)}
    unknown = {extra for extra in ",".join(asked).split(",") if extra} - extras
    return f"slipstream has no extra {', '.join(sorted(unknown))}" if unknown else ""
