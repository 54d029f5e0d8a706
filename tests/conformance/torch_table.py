"""Measures what a backend of `torch.distributed` does with every operation, type and layout, on two ranks.

A cell is right if all ranks get what plain arithmetic on the inputs gives (and no memory beside the tensors is
written), wrong if the operation returns something else, error if it raises, hangs or kills a rank.
"""

from __future__ import annotations

import fnmatch
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import click
from persistent_ranks import Answer, PersistentRanks
from table_page import SEVERITY, Cells, page, summary

HERE = Path(__file__).resolve().parent
RANK_SCRIPT = HERE / "table_rank.py"
PAGE = HERE.parents[1] / "docs" / "torch_operations.md"
BACKENDS = ("gloo", "slipstream")
SIZE = 2
TIMEOUT = 20.0  # seconds a cell may take before its ranks are replaced
CONSEQUENCE = re.compile("hangs|was waiting|[Tt]imed out|closed|reset")
DETAILS = (
    r"^RuntimeError: ",
    r"\[[^\]]*:\d+\] ?|\[[\d.:]+\](:\d+)?",  # source positions, addresses
    r"^\[rank\d+\]:",
    r" \(.*| at index \d+",  # sizes
    r"(?<=desired output type) \w+",
)


def measure(backend: str, patterns: Sequence[str], every: int = 1) -> tuple[Cells, str]:
    """The verdicts on one of ``every`` cells whose operation matches one of ``patterns``, and PyTorch's version.

    After a hang or a crash the next cell gets fresh processes.
    """
    cells: Cells = {}
    with (
        tempfile.TemporaryDirectory(prefix="table-") as folder,
        PersistentRanks(RANK_SCRIPT, SIZE, {"BACKEND": backend, "MASTER_ADDR": "127.0.0.1"}) as ranks,
    ):
        known = ranks.ask({}, TIMEOUT)[0].value
        keys = [key for key in known["keys"] if any(fnmatch.fnmatchcase(key[0], p) for p in patterns)][
            ::every
        ]
        group = Group(ranks, folder)
        for number, key in enumerate(keys):
            cells[key[0], key[1], key[2]] = group.verdict(*key)
            if number + 1 == len(keys) or keys[number + 1][0] != key[0]:
                counts = Counter(verdict for (name, _, _), (verdict, _) in cells.items() if name == key[0])
                said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
                click.echo(f"{backend} {number + 1}/{len(keys)} {key[0]}: {said}", err=True)
    return cells, known["torch"]


class Group:
    """The ranks' default group. One in which an operation failed is suspect: what fails there in another way than
    the operation before is tried again in a fresh one.
    """

    def __init__(self, ranks: PersistentRanks, folder: str) -> None:
        self._ranks = ranks
        self._folder = folder
        self._groups = 0
        self._fresh = True  # whether the next cell needs a fresh group
        self._error: tuple[str, str] | None = None  # the last one in this group

    def verdict(self, operation: str, dtype: str, layout: str) -> tuple[str, str]:
        """The verdict on one cell and why."""
        request = {"operation": operation, "dtype": dtype, "layout": layout}
        suspect = not self._fresh and self._error is not None
        found = self._ask(request)
        if suspect and found[0] != "right" and found != self._error:
            self._fresh = True
            found = self._ask(request)
        if found[0] == "error":
            self._error = found
        return found

    def _ask(self, request: dict[str, str]) -> tuple[str, str]:
        store = ""
        if self._fresh:
            self._groups += 1
            self._error = None
            store = f"{self._folder}/store-{self._groups}"
        answers = self._ranks.ask({**request, "store": store}, TIMEOUT)
        verdicts = [verdict_of(answer) for answer in answers]
        disagree = len(set(verdicts)) > 1 and any(verdict == "error" for verdict, _ in verdicts)
        self._fresh = disagree or any(answer.kind != "done" for answer in answers)
        return min(verdicts, key=gravity)


def gravity(verdict: tuple[str, str]) -> tuple[int, bool]:
    """A key to find the worst verdict; an error comes before those that it causes on other ranks."""
    return SEVERITY.index(verdict[0]), bool(CONSEQUENCE.search(verdict[1]))


def verdict_of(answer: Answer) -> tuple[str, str]:
    """What one rank says of a cell."""
    if answer.kind == "done":
        verdict, why = answer.value
        return verdict, brief(why)
    if "Timeout (" in str(answer.value):
        return "error", "hangs"
    return "error", brief(str(answer.value).splitlines()[-1 if answer.kind == "raised" else 0])


def brief(why: str) -> str:
    """An error in a few words: without what differs from rank to rank, type to type and size to size."""
    for pattern in DETAILS:
        why = re.sub(pattern, "", why)
    return why.replace("|", "/").strip(" .")[:110]


EPILOG = """\b
Examples:
  python tests/conformance/torch_table.py
  python tests/conformance/torch_table.py --operation 'all_gather*' --page - --json cells.json
"""


@click.command(epilog=EPILOG, help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--operation", "patterns", multiple=True, help="Name or shell pattern; may be repeated.")
@click.option("--backend", "backends", multiple=True, type=click.Choice(BACKENDS), help="Only this backend.")
@click.option("--page", "target", help="Write the page there ('-': stdout); needs both backends.")
@click.option("--json", "file", help="Write [operation, type, layout, verdict, why] for each backend there.")
@click.option("--every", default=1, show_default=True, help="Measure one cell of so many: a quick look.")
def main(
    patterns: tuple[str, ...],
    backends: tuple[str, ...],
    target: str | None,
    file: str | None,
    every: int,
) -> None:
    chosen = backends or BACKENDS
    if target and set(chosen) != set(BACKENDS):
        raise click.BadParameter("--page needs both backends")
    measured = {backend: measure(backend, patterns or ("*",), every) for backend in chosen}
    table = {backend: cells for backend, (cells, _) in measured.items()}
    if file:
        rows = {backend: [[*key, *cell] for key, cell in cells.items()] for backend, cells in table.items()}
        Path(file).write_text(json.dumps(rows, indent=1))
    if target or not (patterns or file or backends or every > 1):
        text = page(table, measured[chosen[0]][1], date.today().isoformat())
        if target == "-":
            click.echo(text)
        else:
            Path(target or PAGE).write_text(text)
    click.echo(summary(table), err=target == "-")
    ours = table.get("slipstream", {})
    sys.exit(any(verdict == "wrong" for verdict, _ in ours.values()))


if __name__ == "__main__":
    main()
