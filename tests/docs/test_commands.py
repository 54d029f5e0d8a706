"""Every command that help, README and docs tell people to type: judged by its options, and run where that is
possible."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from docs import outcomes
from docs.commands import ROOT, TUTORIALS, Command, complaint, help_commands, mentioned, page_commands
from docs.stage import CPUS, GPUS, Stage, make_files
from slipstream.lab import Lab, registry

SHOWN = help_commands() + page_commands()
CAN_MAKE_LABS = os.geteuid() == 0 and shutil.which("tc") is not None


def _ran() -> list[object]:
    """A parameter for each command that is run; those that take longer are slow ones."""
    alone = [command for command in SHOWN if not command.where.startswith(TUTORIALS)]
    texts = {re.sub(r"\s+#.*", "", command.text): command.where for command in alone}
    return [
        pytest.param(text, id=text, marks=() if outcomes.quick(text) else pytest.mark.slow)
        for text in texts
        if not outcomes.reason_not_to_run(text)
    ]


def test_commands_are_found_where_they_are_known_to_be() -> None:
    """The search itself: a page whose blocks were no longer understood would pass every other test."""
    places = {command.where for command in SHOWN}
    assert {"README.md", "CONTRIBUTING.md", "docs/lab.md", "docs/reducers.md", "docs/benchmarks.md"} <= places
    for name in ("run", "check", "reducer", "bench all_reduce", "bench train", "lab exec", "plan reducers"):
        assert f"slipstream {name} --help" in places
    assert any("--worker-price" in command.text for command in SHOWN)  # after a backslash
    assert any(command.text == "slipstream lab down NAME" for command in mentioned())  # in an f-string


@pytest.mark.parametrize("command", SHOWN, ids=lambda command: f"{command.where}: {command.text}")
def test_a_command_has_the_options_that_it_is_given(command: Command) -> None:
    assert complaint(command.words, whole=True) == ""


def test_commands_within_sentences_exist() -> None:
    wrong = {
        f"{command.where}: {command.text}": found
        for command in mentioned()
        if (found := complaint(command.words, whole=False))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slipstream lab down a b", "unexpected extra argument"),
        ("slipstream lab run -- slipstream run -np none -- x", "'none' is not a valid integer"),
        ("slipstream lab up; slipstream lab fall", "no command 'fall'"),
        ("slipstream bench train --model x -np 2 --compute-time 50", "has no unit"),
        ("slipstream run --no-such-option", "No such option"),
        ("make no-such-target", "no-such-target"),
        ("pip install slipstream[nothing]", "no extra nothing"),
        ("pip install '.[torch,nothing]'", "no extra nothing"),
    ],
)
def test_a_wrong_command_is_seen(text: str, words: str) -> None:
    assert words in complaint(Command(text, "").words, whole=True)


def test_scripts_of_the_pages_take_the_options_that_they_are_given() -> None:
    """In code blocks and within sentences; of what stands for something else only the options are judged."""
    scripts = defaultdict(list)
    for command in [*SHOWN, *mentioned()]:
        words = command.words
        readers = command.where.startswith(TUTORIALS)  # the reader has saved it
        if words[0] == "python" and words[1].endswith(".py") and words[1] != "train.py" and not readers:
            scripts[words[1]].append(command)
    assert "tests/soak/soak.py" in scripts  # within a sentence of CONTRIBUTING.md
    for script, commands in scripts.items():
        done = subprocess.run(
            [sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for command in commands:
            for word in command.words[2:]:
                if command in SHOWN or word.startswith("-"):
                    assert word.partition("=")[0] in done.stdout, command


def test_make_lists_its_targets() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = re.findall(r"^  make ([a-z-]+)", done.stdout, re.MULTILINE)
    assert {"build", "test", "test-all", "lint", "wheel"} <= set(listed)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A folder with all files that commands name, on a lab whose hosts have the names that commands use."""
    folder = tmp_path_factory.mktemp("stage")
    make_files(folder)
    lab = Lab([*GPUS, *CPUS], rate="1gbit") if CAN_MAKE_LABS else nullcontext(None)
    with lab as made:
        yield Stage(folder, made)


@pytest.fixture
def lab_that_stays(request: pytest.FixtureRequest, stage: Stage) -> None:
    """Some commands of `slipstream lab` presuppose a lab. What a command has made is gone after it."""
    text = request.node.callspec.params["text"]
    if "slipstream lab " not in text:
        return
    if not CAN_MAKE_LABS:
        pytest.skip("a lab needs root and iproute2")
    if registry.folder_of("lab").exists():
        pytest.skip("there is a lab called lab on this machine, which is not ours")
    request.addfinalizer(lambda: registry.destroy("lab"))  # noqa: PT021
    if re.fullmatch(outcomes.BESIDE_A_LAB, text):
        Lab(2, name="lab", keep=True)


@pytest.mark.parametrize("text", _ran())
def test_a_command_works_as_it_is_typed(text: str, stage: Stage, lab_that_stays: None) -> None:
    named = re.search(r"--link |-H (?!localhost)|--hostfile|--interface|reducer", text)
    if stage.lab is None and named:
        pytest.skip("other hosts are those of a lab, which needs root and iproute2")
    if "slipstream bench" in text:
        pytest.importorskip("torch")
    if text.startswith("slipstream reducer"):
        code, output = stage.ends_when_asked(outcomes.here(text))
    elif "--reducers cpu" in text:
        with stage.reducers() as before:
            code, output = stage.run(before + text)
    else:
        code, output = stage.run(outcomes.shortened(text))
    assert code == 0, output
    assert "Traceback" not in output


def test_reasons_are_for_commands_that_there_are() -> None:
    """A reason whose command has gone would cover the next one that looks like it."""
    texts = [re.sub(r"\s+#.*", "", command.text) for command in [*SHOWN, *mentioned()]]
    inline = re.findall(r"`([^`\n]+)`", (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8"))
    inline += re.findall(r"`([^`\n]+)`", (ROOT / "docs" / "lab.md").read_text(encoding="utf-8"))
    for pattern, _ in outcomes.NOT_RUN:
        assert any(re.fullmatch(pattern, text) for text in texts + inline), pattern
