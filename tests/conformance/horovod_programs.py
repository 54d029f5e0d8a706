"""Runs programs of other people, written for Horovod and PyTorch, on slipstream.

CHECKOUTS is a folder of source trees, CHECKOUTS/OWNER/NAME for each repository that `horovod_programs.json` names. A
program runs unchanged, on 1 and 2 workers, with data made here. It has run if it ends without an error and prints what
its entry says. The exit status is 1 if one has not.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from horovod_job import end_job, has_hung, last_words
from horovod_suite import LAUNCH, numbers, what_ran

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "horovod_programs.json"
PAGE = HERE.parent.parent / "docs" / "horovod_programs.md"
RANK = HERE / "program_rank.py"

Program = Mapping[str, Any]  # an entry of horovod_programs.json


@dataclass(frozen=True)
class Run:
    """What became of a program: "ran", "failed" or "hung", why or what it printed, and its seconds."""

    verdict: str
    reason: str
    seconds: float


def ratings(folder: Path) -> None:
    """40 users, each with 12 of 60 items, and 3 others to test: lines of a user and its items."""
    folder.joinpath("ratings").mkdir()
    for name, first, count in (("train.txt", 0, 12), ("test.txt", 12, 3)):
        lines = [
            " ".join(map(str, [user, *((user * 7 + item * 3) % 60 for item in range(first, first + count))]))
            for user in range(40)
        ]
        folder.joinpath("ratings", name).write_text("\n".join(lines))


DATA: dict[str, Callable[[Path], None]] = {"ratings": ratings}


def run_program(program: Program, checkouts: Path, workers: int, launch: str, limit: float) -> Run:
    """Runs ``program`` in a folder of its own, which shows what the checkout holds."""
    checkout = checkouts / program["repository"]
    with tempfile.TemporaryDirectory(prefix="program-") as name:
        folder = Path(name)
        for path in checkout.iterdir():
            if path.name != ".git":
                (folder / path.name).symlink_to(path)
        if "data" in program:
            DATA[program["data"]](folder)
        paths = [str(checkout / path) for path in program.get("paths", [])]
        command = program["command"].replace("{folder}", name)
        output = folder / "output.of.the.job"
        start = time.monotonic()
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [
                    *shlex.split(launch.format(ranks=workers)),
                    sys.executable,
                    str(RANK),
                    *shlex.split(command),
                ],
                cwd=folder,
                env={
                    **os.environ,
                    **program.get("environment", {}),
                    "OMP_NUM_THREADS": "1",
                    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
                    "TMPDIR": name,
                },
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                hung = has_hung(process, limit)
            finally:
                end_job(process)
        return judge(
            program, output.read_text(errors="replace"), process.returncode, hung, time.monotonic() - start
        )


def judge(program: Program, output: str, status: int, hung: bool, seconds: float) -> Run:
    """What the output and the exit status of a program say.

    >>> judge({"find": "accuracy (.*)%", "at_least": 80}, "[0] accuracy 91.2%", 0, False, 3.0)
    Run(verdict='ran', reason='accuracy 91.2%', seconds=3.0)
    >>> judge({"find": "accuracy (.*)%", "at_least": 80}, "[0] accuracy 11.2%", 0, False, 3.0).verdict
    'failed'
    """
    if hung:
        return Run("hung", last_words(output, status), seconds)
    if status:
        return Run("failed", last_words(output, status), seconds)
    found = list(re.finditer(program["find"], output))
    if not found:
        return Run("failed", f"it did not print {program['find']!r}", seconds)
    text = found[-1].group().strip()
    number = float(found[-1].group(1)) if found[-1].groups() else 0.0
    good = program.get("at_least", number) <= number <= program.get("at_most", number)
    return Run("ran" if good else "failed", text, seconds)


def page(runs: Mapping[str, Mapping[int, Run]], programs: Sequence[Program], ran: Mapping[str, str]) -> str:
    """The page for the documentation."""
    lines = [INTRO.format(**ran), "| program | what it uses | workers | result |", "|---|---|---|---|"]
    for program in programs:
        link = f"[{program['name']}](https://github.com/{program['repository']}), `{program['commit']}`"
        if "why_not" in program:
            lines.append(f"| {link} | | | not run: {program['why_not']} |")
            continue
        for workers, run in sorted(runs.get(program["name"], {}).items()):
            told = run.reason.replace("|", "\\|").replace("<", "&lt;")
            lines.append(f"| {link} | {program['uses']} | {workers} | {run.verdict}: `{told}` |")
    return "\n".join(lines) + "\n"


INTRO = """\
# Programs written for Horovod, on slipstream

`python tests/conformance/horovod_programs.py CHECKOUTS` runs programs of other people unchanged, and wrote this page.
It ran on {date} with slipstream {slipstream}, PyTorch {torch} and Python {python}, on CPUs, with `{launch}`.

The data are made on the spot: scikit-learn's digits in the shapes of MNIST, CIFAR-10 and ImageNet, or random numbers.
Where a package is not installed, a small one of the same name stands in for it
(`tests/conformance/stand_ins`), such as torchvision with one small network. For programs that ask for a GPU, the CPU
stands in. The result is the last line that the check of `tests/conformance/horovod_programs.json` finds.
"""

EPILOG = """\b
Examples:
  python tests/conformance/horovod_programs.py ~/checkouts
  python tests/conformance/horovod_programs.py ~/checkouts --only Lightning --workers 2
  python tests/conformance/horovod_programs.py ~/checkouts --json programs.json --page
"""


@click.command(epilog=EPILOG, help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("checkouts", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path))
@click.option(
    "--table",
    default=PROGRAMS,
    show_default=PROGRAMS.name,
    type=click.Path(exists=True, path_type=Path),
    help="What to run, as JSON.",
)
@click.option("--only", "words", multiple=True, help="Part of a program's name; may be repeated.")
@click.option(
    "--workers", "sizes", default="1,2", show_default=True, callback=numbers, help="Numbers of ranks."
)
@click.option("--limit", default=300.0, show_default=True, help="Seconds a program may take.")
@click.option("--launch", default=LAUNCH, show_default=True, help="What starts a job.")
@click.option(
    "--json",
    "file",
    type=click.Path(path_type=Path),
    help="Write all results there. What it holds of programs that do not run now is kept.",
)
@click.option("--page", "as_page", is_flag=True, help="Write docs/horovod_programs.md.")
def main(
    checkouts: Path,
    table: Path,
    words: tuple[str, ...],
    sizes: list[int],
    limit: float,
    launch: str,
    file: Path | None,
    as_page: bool,
) -> None:
    programs = json.loads(table.read_text())
    runs: dict[str, dict[int, Run]] = {}
    if file and file.exists():
        told = json.loads(file.read_text())
        runs = {name: {int(n): Run(**run) for n, run in of.items()} for name, of in told.items()}
    bad = 0
    for program in programs:
        checkout = checkouts / program["repository"]
        if "why_not" in program or (words and not any(word in program["name"] for word in words)):
            continue
        for workers in program.get("workers", sizes):
            if checkout.is_dir():
                run = run_program(program, checkouts, workers, launch, limit)
            else:
                run = Run("failed", f"no checkout of {program['repository']}", 0.0)
            runs.setdefault(program["name"], {})[workers] = run
            bad += run.verdict != "ran"
            click.echo(f"{program['name']} x{workers}: {run.verdict}, {run.seconds:.0f} s: {run.reason}")
            if file:
                file.write_text(json.dumps(runs, indent=1, default=asdict))
    if as_page:
        PAGE.write_text(page(runs, programs, what_ran(checkouts, launch)))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
