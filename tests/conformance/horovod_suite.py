"""Runs Horovod's own tests of its PyTorch API on slipstream.

CHECKOUT is a source tree of Horovod. Each file of tests runs in one job, as a user of Horovod would run it; if a test
takes longer than --limit or ends the job, those behind it run in another one. Then each test that did not pass runs in
a job of its own, which tells what follows from an earlier failure. Printed are the counts, and the failures with their
reasons; the exit status is 1 if there are any that `horovod_exceptions.json` does not excuse.
"""

from __future__ import annotations

import fnmatch
import json
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import horovod_page
from horovod_job import BAD, VERDICTS, Job, Result, run_job

HERE = Path(__file__).resolve().parent
EXCEPTIONS = HERE / "horovod_exceptions.json"
DOCS = HERE.parent.parent / "docs"
PAGE = DOCS / "horovod_tests.md"
INTRO = horovod_page.INTRO
PACKAGES = ["torch"]  # whose versions the page tells
# Below `test`: what needs PyTorch, or no framework at all.
FILES = (
    "parallel/test_torch*.py",
    "parallel/test_adasum_pytorch.py",
    "parallel/test_process_sets_*.py",
    "parallel/test_timeline.py",
    "parallel/test_common.py",
    "single/test_torch*.py",
)
SINGLE = "single/"  # the folder of tests of one process
LAUNCH = "slipstream run --horovod -np {ranks} --"
ALONE = {
    "failed": lambda result: result.verdict in BAD,
    "all": lambda _: True,
    "none": lambda _: False,
}

# {"together": what became of it in the job of its file, "alone": in a job of its own, if it had one}
Test = dict[str, Result]
Results = dict[int, dict[str, dict[str, Test]]]  # by ranks, file, test
Choice = Callable[[Result], bool]


def files_to_run(checkout: Path) -> list[str]:
    """The files of tests, as paths below `test`."""
    root = checkout / "test"
    return [str(path.relative_to(root)) for pattern in FILES for path in sorted(root.glob(pattern))]


def run_all(
    job: Job, ranks: int, file: str, patterns: Sequence[str], apart: Sequence[str]
) -> dict[str, Result]:
    """What became of the tests but those ``apart``, in one job, or as many as end before all tests have run."""
    found: dict[str, Result] = {}
    while True:
        now = run_job(job, ranks, file, patterns, [*apart, *found])
        ran = {name: result for name, result in now.items() if result.verdict != "not run"}
        found |= ran
        if not ran or len(ran) == len(now):
            return found | {name: result for name, result in now.items() if name not in found}


def run_file(
    job: Job, ranks: int, file: str, patterns: Sequence[str], alone: Choice, apart: Sequence[str] = ()
) -> Iterator[tuple[str, Test]]:
    """What became of the tests of ``file`` that match ``patterns``, as it becomes known: the last word counts.

    Those named in ``apart`` run in jobs of their own only.
    """
    together = run_all(job, ranks, file, patterns, apart)
    for name in apart:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            together |= run_job(job, ranks, file, [name])
    counts = Counter(result.verdict for result in together.values())
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    click.echo(f"{ranks} ranks {file}: {told}", err=True)
    for name, result in together.items():
        yield name, {"together": result}
    for name, result in together.items():
        if alone(result) and not name.startswith("(") and name not in apart:
            again = run_job(job, ranks, file, [name])
            found = again.get(name) or again["(start)"]
            click.echo(f"{ranks} ranks {name} alone: {found.verdict} {found.reason}".rstrip(), err=True)
            yield name, {"together": result, "alone": found}


def excuse(known: Sequence[dict[str, Any]], ranks: int, file: str, test: str) -> str:
    """Why a failure of ``test`` is known, or ''."""
    for entry in known:
        if (entry["file"], entry["test"]) == (file, test) and ranks in entry.get("ranks", [ranks]):
            reason: str = entry["reason"]
            return reason
    return ""


def failures(results: Results, known: Sequence[dict[str, Any]]) -> list[tuple[int, str, str, Test]]:
    """The (ranks, file, test, results) that are bad in the job of the file, without those that ``known`` excuses."""
    return [
        (ranks, file, name, test)
        for ranks, files in results.items()
        for file, tests in files.items()
        for name, test in tests.items()
        if test["together"].verdict in BAD and not excuse(known, ranks, file, name)
    ]


def not_needed(results: Results, known: Sequence[dict[str, Any]]) -> list[tuple[int, str]]:
    """The (ranks, test) that ``known`` excuses and that did not fail."""
    return [
        (ranks, name)
        for ranks, files in results.items()
        for file, tests in files.items()
        for name, test in tests.items()
        if test["together"].verdict not in BAD and excuse(known, ranks, file, name)
    ]


def report(results: Results, known: Sequence[dict[str, Any]]) -> str:
    """The counts and the failures, and the excuses that nothing needed, as text."""
    lines = [f"{'file':<42}{'ranks':>6}  " + "".join(f"{verdict:>9}" for verdict in VERDICTS)]
    for ranks, files in results.items():
        for file, tests in files.items():
            counts = Counter(test["together"].verdict for test in tests.values())
            lines.append(f"{file:<42}{ranks:>6}  " + "".join(f"{counts[verdict]:>9}" for verdict in VERDICTS))
    bad = failures(results, known)
    lines += ["", f"{len(bad)} failures that are not known"]
    for ranks, file, name, test in bad:
        lines.append(f"  {ranks} ranks {file} {name}: {test['together'].verdict}: {test['together'].reason}")
        if "alone" in test:
            lines.append(f"    alone: {test['alone'].verdict} {test['alone'].reason}".rstrip())
    lines += [
        f"  {ranks} ranks {name}: did not fail, and is excused" for ranks, name in not_needed(results, known)
    ]
    return "\n".join(lines)


def what_ran(checkout: Path, launch: str, commit: str = "") -> dict[str, str]:
    """The versions that the results are about. ``commit``: that of the checkout; "": git knows it."""
    git = ["git", "-C", str(checkout), "log", "-1", "--format=%h of %cs"]
    told = subprocess.run(git, capture_output=True, text=True, check=False)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "horovod": commit or told.stdout.strip() or "an unknown commit",
        "launch": launch.replace("{ranks}", "RANKS"),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("slipstream", *PACKAGES)},
    }


def load(text: str) -> tuple[Results, dict[str, str]]:
    """What `dump` wrote: the results, and what ran."""
    told = json.loads(text)
    results = {
        int(ranks): {
            file: {name: {way: Result(**r) for way, r in test.items()} for name, test in tests.items()}
            for file, tests in files.items()
        }
        for ranks, files in told["results"].items()
    }
    return results, told["ran"]


def dump(results: Results, ran: dict[str, str]) -> str:
    return json.dumps({"ran": ran, "results": results}, indent=1, default=asdict)


def numbers(_context: click.Context, _parameter: click.Parameter, value: str) -> list[int]:
    """A list from a comma-separated option."""
    if not all(part.isdigit() and int(part) for part in value.split(",")):
        raise click.BadParameter("numbers of ranks, such as 2,3,4")
    return [int(part) for part in value.split(",")]


EPILOG = """\b
Examples:
  python tests/conformance/horovod_suite.py ~/horovod
  python tests/conformance/horovod_suite.py ~/horovod --ranks 2 --tests '*broadcast*'
  python tests/conformance/horovod_suite.py ~/horovod --json horovod.json --page
  python tests/conformance/horovod_suite.py ~/horovod --launch 'horovodrun -np {ranks}'
"""


@click.command(epilog=EPILOG, help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("checkout", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path))
@click.option(
    "--ranks", "sizes", default="2,3,4", show_default=True, callback=numbers, help="Numbers of ranks."
)
@click.option("--tests", "patterns", multiple=True, help="Name or shell pattern of tests; may be repeated.")
@click.option(
    "--alone",
    type=click.Choice(list(ALONE)),
    default="failed",
    show_default=True,
    help="Which tests also run in a job of their own.",
)
@click.option(
    "--commit", default="", help="Commit and date of CHECKOUT, for --page, if git does not know them."
)
@click.option("--limit", default=100.0, show_default=True, help="Seconds a test may take.")
@click.option("--launch", default=LAUNCH, show_default=True, help="What starts a job.")
@click.option(
    "--json",
    "file",
    type=click.Path(path_type=Path),
    help="Write all results there. What it holds of tests that do not run now is kept.",
)
@click.option("--show", is_flag=True, help="Run nothing; show what --json holds.")
@click.option("--page", is_flag=True, help="Write the page in docs.")
def main(
    checkout: Path,
    sizes: list[int],
    patterns: tuple[str, ...],
    alone: str,
    commit: str,
    limit: float,
    launch: str,
    file: Path | None,
    show: bool,
    page: bool,
) -> None:
    names = files_to_run(checkout)
    if not names:
        raise click.UsageError(f"{checkout / 'test'}: no such tests; is {checkout} a source tree of Horovod?")
    if show and not (file and file.exists()):
        raise click.UsageError("--show needs --json with results")
    known = json.loads(EXCEPTIONS.read_text())
    results, ran = load(file.read_text()) if file and file.exists() else ({}, {})
    if not show:
        ran = what_ran(checkout, launch, commit)
        job = Job(launch, checkout, limit)
        for name in names:
            for ranks in [1] if name.startswith(SINGLE) else sizes:
                tests = results.setdefault(ranks, {}).setdefault(name, {})
                wanted = [f"*{pattern}" for pattern in patterns] or ["*"]
                apart = [
                    entry["test"]
                    for entry in known
                    if entry.get("apart") and excuse([entry], ranks, name, entry["test"])
                ]
                for test, told in run_file(job, ranks, name, wanted, ALONE[alone], apart):
                    tests[test] = told
                    if file:
                        file.write_text(dump(results, ran))
    click.echo(report(results, known))
    if page:
        PAGE.write_text(horovod_page.page(results, ran, known, INTRO))
    sys.exit(bool(failures(results, known)))


if __name__ == "__main__":
    main()
