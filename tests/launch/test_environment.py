"""Which of the launcher's variables the ranks get."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from launch.test_run import PRINT_ENV, run, tag
from slipstream.launch.environment import FORWARDED, passed_on

__all__ = ["tag"]

PAGE = Path(__file__).parents[2] / "docs" / "running.md"

KEPT = ["OMP_NUM_THREADS", "SLIPSTREAM_LANES", "NCCL_DEBUG", "PATH", "PYTHONPATH", "PYTHONHASHSEED", "LC_ALL"]
LEFT = [
    "HF_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "WANDB_API_KEY",
    "MY_OWN",
    "HOME",
    "SSH_AUTH_SOCK",
    "PATHS",
    "TORCH_TOKEN",
]
OF_A_JOB = ["SLIPSTREAM_SECRET", "SLIPSTREAM_RANK", "HOROVOD_RANK"]


def test_other_hosts_get_what_is_listed() -> None:
    given = dict.fromkeys(KEPT + LEFT + OF_A_JOB, "x")
    assert sorted(passed_on(given, remote=True)) == sorted(KEPT)
    assert sorted(passed_on(given, remote=False)) == sorted(KEPT + LEFT)


def test_the_page_has_the_list() -> None:
    listed = re.findall(r"^    ([A-Z]+[_* ].*)$", PAGE.read_text(), re.MULTILINE)
    assert " ".join(listed).split() == list(FORWARDED)


@pytest.fixture
def other(tmp_path: Path, tag: str) -> Path:
    """A stand-in for ssh whose host has an environment of its own."""
    path = tmp_path / "ssh"
    path.write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\n'
        f'exec env -i PATH="$PATH" {tag} THERE=yes sh -c "$*"\n'
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], None),
        (["-x", "HF_TOKEN"], "secret"),
        (["-x", "HF_TOKEN=other"], "other"),
        (["-e", "HF_TOKEN=other"], "other"),
    ],
)
def test_a_token_travels_only_if_it_is_asked_for(
    tag: str, other: Path, arguments: list[str], expected: str | None
) -> None:
    hosts = [
        "-np",
        "2",
        "-H",
        "localhost,node1",
        "--ssh-command",
        str(other),
        "--output-dir",
        f"{other}.logs",
    ]
    job = ["--", sys.executable, "-c", PRINT_ENV]
    code, _, err = run(tag, *hosts, *arguments, *job, HF_TOKEN="secret", NCCL_DEBUG="INFO")
    assert code == 0, err
    here, there = (json.loads(Path(f"{other}.logs/rank.{rank}/stdout").read_text()) for rank in range(2))
    assert here["HF_TOKEN"] == expected or (expected is None and here["HF_TOKEN"] == "secret")
    assert there.get("HF_TOKEN") == expected
    assert there["NCCL_DEBUG"] == "INFO"
    assert there["THERE"] == "yes"
    assert there["PATH"] == os.environ["PATH"]


def test_a_variable_that_is_not_there_is_an_error(tag: str) -> None:
    code, _, err = run(tag, "-np", "1", "-x", "NOT_SET_HERE", "--", "true")
    assert code == 2
    assert "-x NOT_SET_HERE: this environment has no such variable; write -x NOT_SET_HERE=VALUE" in err
