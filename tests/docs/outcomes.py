"""How `test_commands` treats each command that people are told to type: data, with a reason for what is not run."""

from __future__ import annotations

import re

# Run by `make test`; all others that can run here are run by `make test-all`.
QUICK = (
    r"slipstream check",
    r"slipstream reducer --bind 10\..*",
    r"slipstream plan .*",
    r"slipstream run -np 2 -- python train.py",
    r"slipstream run -np 4 -- python train.py",
    r"slipstream lab exec .*",
    r"slipstream lab up .*",
)

# Only their options are judged. The first pattern that fits counts.
NOT_RUN = (
    (r"make (?!help\b).*", "builds or tests all of this, this test too; that the target exists is checked"),
    (r"pip install .*", "needs a package index; that the extra exists is checked"),
    (
        r"python benchmarks/(allreduce|network|lanes|reducers|protection)\.py.*",
        "takes minutes to half an hour",
    ),
    (r"python benchmarks/(ddp|overhead)\.py.*", "measures for a minute, and waits for a quiet machine"),
    (
        r"python benchmarks/readme\.py",
        "writes into README.md; benchmarks/test_readme.py checks what it writes",
    ),
    (r"python -m pytest benchmarks.*", "tests/ and benchmarks/ are run together"),
    (r"slipstream bench train --model (vgg16|bert-base|gpt-small) .*", "several GB of memory and minutes"),
    (
        r"slipstream bench (?!all_reduce|train)\w+ -np (4 --against gloo,mpi --repeats 25 --json|8 .*)",
        "the same help for each collective: run for all_reduce",
    ),
)

# Addresses and files that are those of a reader's machines, and what stands for them here.
STAND_INS = {"10.0.0.9": "127.0.0.1", "/etc/slipstream/reducer.secret": "reducer.secret"}

# A bench in full takes a minute: these words make it a matter of seconds.
SHORTER = {"train": "--repeats 1 --steps 1", "": "--repeats 1 --warmup 0"}

# Commands that presuppose a lab that stays.
BESIDE_A_LAB = r"slipstream lab exec .*"


def reason_not_to_run(text: str) -> str:
    """Why a command is only judged by its options, or ""."""
    return next((reason for pattern, reason in NOT_RUN if re.fullmatch(pattern, text)), "")


def quick(text: str) -> bool:
    """Whether a command is run by `make test`."""
    return any(re.fullmatch(pattern, text) for pattern in QUICK)


def here(text: str) -> str:
    """The command with what this machine has in the place of a reader's addresses and files."""
    for theirs, ours in STAND_INS.items():
        text = text.replace(theirs, ours)
    return text


def shortened(text: str) -> str:
    """The command with fewer repeats and, where it names no sizes, a small one."""
    match = re.search(r"slipstream bench (\w+)", text)
    if match is None:
        return text
    words = SHORTER.get(match[1], SHORTER[""])
    if match[1] not in ("train", "barrier") and not re.search(r"--(sizes|min)\b", text):
        words += " --sizes 64K"
    return f"{text[: match.end()]} {words}{text[match.end() :]}"
