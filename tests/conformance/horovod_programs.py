"""Runs programs of other people, written for Horovod and PyTorch, on slipstream.

CHECKOUTS is a folder of source trees, CHECKOUTS/OWNER/NAME for each repository that `horovod_programs.json` names, with
their submodules. A program runs unchanged, on 1 and 2 workers, with data made here. It has run if it ends without an
error and prints what its entry says. Where its batch can be set, all workers together have the batch of one, and their
result must agree with its result within the tolerance of the entry. The exit status is 1 if a program fails or differs.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import numpy as np
from horovod_job import end_job, has_hung, last_words
from horovod_suite import LAUNCH, numbers, what_ran

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "horovod_programs.json"
PAGE = HERE.parent.parent / "docs" / "horovod_programs.md"
RANK = HERE / "program_rank.py"
FINISHED = ("ran", "differs")  # what became of a program that did what its check asks for

Program = Mapping[str, Any]  # an entry of horovod_programs.json


@dataclass(frozen=True)
class Run:
    """What became of a program: "ran", "failed", "hung" or "differs", why or what it printed, and its seconds.

    ``number``: the last one that it printed as its entry asks for it, None if there is none.
    """

    verdict: str
    reason: str
    seconds: float
    number: float | None = None


def ratings(folder: Path) -> None:
    """40 users, each with 12 of 60 items, and 3 others to test: lines of a user and its items."""
    folder.joinpath("ratings").mkdir()
    for name, first, count in (("train.txt", 0, 12), ("test.txt", 12, 3)):
        lines = [
            " ".join(map(str, [user, *((user * 7 + item * 3) % 60 for item in range(first, first + count))]))
            for user in range(40)
        ]
        folder.joinpath("ratings", name).write_text("\n".join(lines))


def captions(folder: Path) -> None:
    """Two archives of 3 of scikit-learn's digits each, as pictures of 32 x 32 with a text each."""
    from PIL import Image
    from sklearn.datasets import load_digits

    found = load_digits()
    for shard in range(2):
        with tarfile.open(folder / f"digits-{shard}.tar", "w") as archive:
            for index in range(shard * 3, shard * 3 + 3):
                picture = io.BytesIO()
                pixels = np.kron(found.images[index] * 255 / 16, np.ones((4, 4))).astype(np.uint8)
                Image.fromarray(pixels).save(picture, "PNG")
                text = f"picture {index}, the digit {found.target[index]}".encode()
                for ending, content in (("png", picture.getvalue()), ("txt", text)):
                    entry = tarfile.TarInfo(f"{index:04}.{ending}")
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))


DATA: dict[str, Callable[[Path], None]] = {"captions": captions, "ratings": ratings}


def fill_in(text: str, program: Program, workers: int, folder: Path) -> str:
    """``text`` with the folder of the run, the batch of a worker, and the learning rate that it is told.

    The workers share the batch of the entry. A program that multiplies its learning rate by the number of workers is
    told that part of the rate.

    >>> entry = {"batch": 64, "rate": 0.02}
    >>> fill_in("--batch-size {batch} --lr {rate} --dir {folder}", entry, 2, Path("x"))
    '--batch-size 32 --lr 0.01 --dir x'
    """
    values = {"{folder}": str(folder)}
    if "batch" in program:
        values["{batch}"] = str(program["batch"] // workers)
    if "rate" in program:
        values["{rate}"] = f"{program['rate'] / workers:g}"
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def prepare(program: Program, checkout: Path, folder: Path) -> None:
    """Shows in ``folder`` what the checkout holds, with the data of the program."""
    for path in checkout.iterdir():
        if path.name != ".git":
            (folder / path.name).symlink_to(path)
    if "data" in program:
        DATA[program["data"]](folder)


def environment(
    program: Program, checkout: Path, packages: Path | None, workers: int, folder: Path
) -> dict[str, str]:
    """The variables of a program that runs in ``folder``."""
    paths = [str(checkout / path) for path in program.get("paths", [])]
    paths += [str(packages)] if packages else []
    own = {
        name: fill_in(value, program, workers, folder)
        for name, value in program.get("environment", {}).items()
    }
    return {
        **os.environ,
        **own,
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        "TMPDIR": str(folder),
    }


def run_program(
    program: Program, checkouts: Path, workers: int, launch: str, limit: float, packages: Path | None
) -> Run:
    """Runs ``program`` in a folder of its own, with the packages of the folder ``packages``."""
    checkout = checkouts / program["repository"]
    with tempfile.TemporaryDirectory(prefix="program-") as name:
        folder = Path(name)
        prepare(program, checkout, folder)
        command = fill_in(program["command"], program, workers, folder)
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
                env=environment(program, checkout, packages, workers, folder),
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


def try_program(
    program: Program, checkouts: Path, workers: int, launch: str, limit: float, packages: Path | None
) -> Run:
    """Runs ``program`` if all that it needs is there, and the workers can share its batch."""
    lacks = missing(program, packages)
    if program.get("batch", workers) % workers:
        return Run("failed", f"{workers} workers cannot share a batch of {program['batch']}", 0.0)
    if not (checkouts / program["repository"]).is_dir():
        return Run("failed", f"no checkout of {program['repository']}", 0.0)
    if lacks:
        return Run("failed", f"not installed, nor in --packages: {' '.join(lacks)}", 0.0)
    return run_program(program, checkouts, workers, launch, limit, packages)


def judge(program: Program, output: str, status: int, hung: bool, seconds: float) -> Run:
    """What the output and the exit status of a program say.

    >>> judge({"find": "accuracy (.*)%", "at_least": 80}, "[0] accuracy 91.2%", 0, False, 3.0)
    Run(verdict='ran', reason='accuracy 91.2%', seconds=3.0, number=91.2)
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
    if not found[-1].groups():
        return Run("ran", text, seconds)
    number = float(found[-1].group(1))
    good = program.get("at_least", number) <= number <= program.get("at_most", number)
    return Run("ran" if good else "failed", text, seconds, number)


def compare(program: Program, alone: Run | None, run: Run) -> Run:
    """``run``, which "differs" if its number is too far from that of ``alone``, the run of one worker.

    >>> alone, both = Run("ran", "loss 0.50", 3.0, 0.5), Run("ran", "loss 0.53", 2.0, 0.53)
    >>> compare({"within": 0.1}, alone, both).verdict, compare({"within": 0.01}, alone, both).verdict
    ('ran', 'differs')
    """
    if "within" not in program or alone is None or alone.verdict != "ran" or run.verdict not in FINISHED:
        return run
    return replace(run, verdict=FINISHED[apart(alone, run) > program["within"]])


def apart(alone: Run, run: Run) -> float:
    """How far the numbers of two runs are from each other; infinity if one has none.

    >>> apart(Run("ran", "", 1.0, 0.5), Run("ran", "", 1.0, 0.75)), apart(Run("ran", "", 1.0), Run("ran", "", 1.0))
    (0.25, inf)
    """
    if alone.number is None or run.number is None:
        return math.inf
    return abs(alone.number - run.number)


def page(runs: Mapping[str, Mapping[int, Run]], programs: Sequence[Program], ran: Mapping[str, str]) -> str:
    """The page for the documentation."""
    sizes = sorted({workers for program in programs for workers in runs.get(program["name"], {})})
    needs = sorted({name for program in programs for name in program.get("needs", [])})
    results = [f"{size} worker{'s' * (size > 1)}" for size in sizes]
    titles = ["program", "what it uses", *results, "as one process?"]
    lines = [INTRO.format(**ran, needs=" ".join(needs)), _row(titles), _row(["---"] * len(titles))]
    for program in programs:
        of = runs.get(program["name"], {})
        if "why_not" not in program:
            told = [_told(of[size]) if size in of else "did not run here" for size in sizes]
            lines.append(_row([_link(program), program["uses"], *told, agreement(program, of)]))
    lines += ["", NOT_RUN, _row(["program", "why"]), _row(["---"] * 2)]
    lines += [_row([_link(program), program["why_not"]]) for program in programs if "why_not" in program]
    return "\n".join(lines) + "\n"


def agreement(program: Program, runs: Mapping[int, Run]) -> str:
    """How far the results of several workers are from that of one, and why they are not equal.

    >>> runs = {1: Run("ran", "loss 0.50", 3.0, 0.5), 2: Run("ran", "loss 0.53", 2.0, 0.53)}
    >>> agreement({"within": 0.1, "batch": 64, "unequal": "drop-out"}, runs)
    'batch of 64: 0.03 apart, at most 0.1 allowed: drop-out'
    >>> agreement({"unequal": "data by rank"}, runs)
    'not compared: data by rank'
    """
    why = program.get("unequal", "")
    others = [run for workers, run in runs.items() if workers > 1]
    if "within" not in program or 1 not in runs or not others:
        return f"not compared{': ' * bool(why)}{why}"
    most = max(apart(runs[1], run) for run in others)
    batch = f"batch of {program['batch']}: " if "batch" in program else ""
    return f"{batch}{most:.2g} apart, at most {program['within']:g} allowed{': ' * bool(why)}{why}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _told(run: Run) -> str:
    return f"{run.verdict}: `{run.reason}`".replace("|", "\\|").replace("<", "&lt;")


def _link(program: Program) -> str:
    return f"[{program['name']}](https://github.com/{program['repository']}), `{program['commit']}`"


def missing(program: Program, packages: Path | None) -> list[str]:
    """What the program needs, as `NAME` or `NAME==VERSION`, that is not installed, nor in the folder ``packages``.

    >>> missing({"needs": ["click", "click==0.1", "no-such-package"]}, None)
    ['click==0.1', 'no-such-package']
    """
    found = [*metadata.distributions(), *metadata.distributions(path=[str(packages)] if packages else [])]
    there = {(_plain(distribution.metadata["Name"]), distribution.version) for distribution in found}
    there |= {(name, "") for name, _ in there}
    return [
        needed
        for needed in program.get("needs", [])
        if (_plain(needed.partition("==")[0]), needed.partition("==")[2]) not in there
    ]


def _plain(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


INTRO = """\
# Programs written for Horovod, on slipstream

`python tests/conformance/horovod_programs.py CHECKOUTS` runs programs of other people unchanged, and wrote this page.
It ran on {date} with slipstream {slipstream}, PyTorch {torch} and Python {python}, on CPUs, with `{launch}`.

The data are made on the spot: scikit-learn's digits in the shapes of MNIST, CIFAR-10 and ImageNet, or random numbers.
Small packages of `tests/conformance/stand_ins` stand in for some large ones, such as torchvision with small networks
and without augmentation. For programs that ask for a GPU, the CPU stands in. Other packages that programs need come
from a folder, `--packages FOLDER`: `pip install --target FOLDER --no-deps {needs}`.

The result is the last line that the check of `tests/conformance/horovod_programs.json` finds. The last column compares
it with the result of one worker. Where a batch is given, the workers share it, and one worker has all of it. Programs
that multiply their learning rate by the number of workers are told a smaller one, so that it is the same, too.
"""

NOT_RUN = """\
## Not run
"""

EPILOG = """\b
Examples:
  python tests/conformance/horovod_programs.py ~/checkouts
  python tests/conformance/horovod_programs.py ~/checkouts --only Lightning --workers 2
  python tests/conformance/horovod_programs.py ~/checkouts --packages ~/packages --json programs.json --page
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
@click.option(
    "--packages",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="A folder of packages that programs need: see pip install --target.",
)
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
    packages: Path | None,
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
        if "why_not" in program or (words and not any(word in program["name"] for word in words)):
            continue
        of = runs.setdefault(program["name"], {})
        for workers in program.get("workers", sizes):
            of[workers] = try_program(program, checkouts, workers, launch, limit, packages)
            for several in of.keys() - {1}:
                of[several] = compare(program, of.get(1), of[several])
            run = of[workers]
            click.echo(f"{program['name']} x{workers}: {run.verdict}, {run.seconds:.0f} s: {run.reason}")
            if file:
                file.write_text(json.dumps(runs, indent=1, default=asdict))
        click.echo(f"  compared with 1 worker: {agreement(program, of)}")
        bad += sum(run.verdict != "ran" for run in of.values())
    if as_page:
        PAGE.write_text(page(runs, programs, what_ran(checkouts, launch)))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
