"""Runs Horovod's own tests of its PyTorch API on slipstream; other runners make a `Suite` of other files.

CHECKOUT is a source tree of Horovod. Each file of tests runs in one job, as a user of Horovod would run it; if a test
takes longer than --limit or ends the job, those behind it run in another one. Then each test that did not pass runs in
a job of its own, which tells what follows from an earlier failure. Printed are the counts, and the failures with their
reasons; the exit status is 1 if there are any that the file of exceptions does not excuse.
"""

from __future__ import annotations

import fnmatch
import json
import platform
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import horovod_page
from horovod_job import BAD, VERDICTS, Job, Result, Stopped, run_job

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent.parent / "docs"
SINGLE = "single/"  # the folder of tests of one process
ABOUT = (__doc__ or "").partition("\n\n")[2]
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


@dataclass(frozen=True)
class Suite:
    """Tests of one of Horovod's APIs: ``files`` below `test`, as shell patterns; and what is known and told of them."""

    name: str  # of the runner
    api: str
    files: Sequence[str]
    exceptions: Path  # a list of what fails, with reasons, as JSON
    page: Path
    intro: str  # of the page
    packages: Sequence[str]  # whose versions the page tells
    limit: float = 100.0  # seconds a test may take, by default

    def known(self) -> list[dict[str, Any]]:
        """The exceptions."""
        found: list[dict[str, Any]] = json.loads(self.exceptions.read_text())
        return found

    def files_to_run(self, checkout: Path, patterns: Sequence[str]) -> list[str]:
        """The files of tests that match one of ``patterns``, as paths below `test`."""
        root = checkout / "test"
        names = [str(path.relative_to(root)) for pattern in self.files for path in sorted(root.glob(pattern))]
        return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


TORCH = Suite(
    name="horovod_suite.py",
    api="PyTorch",
    # What needs PyTorch, or no framework at all.
    files=(
        "parallel/test_torch*.py",
        "parallel/test_adasum_pytorch.py",
        "parallel/test_process_sets_*.py",
        "parallel/test_timeline.py",
        "parallel/test_common.py",
        "single/test_torch*.py",
    ),
    exceptions=HERE / "horovod_exceptions.json",
    page=DOCS / "horovod_tests.md",
    intro=horovod_page.INTRO,
    packages=["torch"],
)


def run_all(
    job: Job, ranks: int, file: str, patterns: Sequence[str], without: Sequence[str]
) -> Iterator[dict[str, Result]]:
    """What became of the tests but those ``without``, in one job, or as many as end before all tests have run."""
    found: dict[str, Result] = {}
    while True:
        now = run_job(job, ranks, file, patterns, [*without, *found])
        ran = {name: result for name, result in now.items() if result.verdict != "not run"}
        found |= ran
        yield now
        if not ran or len(ran) == len(now):
            return


def run_file(
    job: Job,
    ranks: int,
    file: str,
    patterns: Sequence[str],
    alone: Choice,
    apart: Sequence[str] = (),
    done: Mapping[str, Test] | None = None,
) -> Iterator[tuple[str, Test]]:
    """What became of the tests of ``file`` that match ``patterns``, as it becomes known: the last word counts.

    Those named in ``apart`` run in jobs of their own only; those in ``done`` have run before.
    """
    done = {} if done is None else {name: test for name, test in done.items() if not name.startswith("(")}
    together = {name: test["together"] for name, test in done.items()}
    try:
        for now in run_all(job, ranks, file, patterns, [*apart, *done]):
            together |= now
            yield from ((name, {"together": result}) for name, result in now.items())
    except Stopped as stopped:
        yield from ((name, {"together": result}) for name, result in stopped.results.items())
        raise
    for name in apart:
        if name not in done and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            now = run_job(job, ranks, file, [name])
            together |= now
            yield from ((name, {"together": result}) for name, result in now.items())
    counts = Counter(result.verdict for result in together.values())
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    click.echo(f"{ranks} ranks {file}: {told}", err=True)
    for name, result in together.items():
        if (
            alone(result)
            and not name.startswith("(")
            and name not in apart
            and "alone" not in done.get(name, {})
        ):
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


def what_ran(checkout: Path, launch: str, packages: Sequence[str], commit: str = "") -> dict[str, str]:
    """The versions that the results are about. ``commit``: that of the checkout; "": git knows it."""
    git = ["git", "-C", str(checkout), "log", "-1", "--format=%h of %cs"]
    told = subprocess.run(git, capture_output=True, text=True, check=False)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "horovod": commit or told.stdout.strip() or "an unknown commit",
        "launch": launch.replace("{ranks}", "RANKS"),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("slipstream", *packages)},
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


def run_suite(
    suite: Suite,
    job: Job,
    sizes: Sequence[int],
    files: Sequence[str],
    patterns: Sequence[str],
    alone: Choice,
    results: Results,
    resume: bool,
) -> Iterator[None]:
    """Runs the tests of ``files`` that match ``patterns``; yields each time that ``results`` tells more.

    ``resume``: what it tells already does not run again, but for the tests that did not run.
    """
    known = suite.known()
    for name in files:
        for ranks in [1] if name.startswith(SINGLE) else sizes:
            tests = results.setdefault(ranks, {}).setdefault(name, {})
            apart = [
                entry["test"]
                for entry in known
                if entry.get("apart") and excuse([entry], ranks, name, entry["test"])
            ]
            ran = {name: test for name, test in tests.items() if test["together"].verdict != "not run"}
            for test, told in run_file(job, ranks, name, patterns, alone, apart, ran if resume else None):
                tests[test] = told
                yield


EPILOG = """\b
Examples:
  python tests/conformance/RUNNER ~/horovod
  python tests/conformance/RUNNER ~/horovod --ranks 2 --tests '*broadcast*'
  python tests/conformance/RUNNER ~/horovod --json horovod.json --page
  timeout 600 python tests/conformance/RUNNER ~/horovod --json horovod.json --resume
  python tests/conformance/RUNNER ~/horovod --launch 'horovodrun -np {ranks}'
"""


def command(suite: Suite) -> click.Command:
    """The command that runs ``suite``."""

    @click.command(
        epilog=EPILOG.replace("RUNNER", suite.name),
        help=f"Runs Horovod's own tests of its {suite.api} API on slipstream.\n\n{ABOUT}",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    @click.argument(
        "checkout", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)
    )
    @click.option(
        "--ranks", "sizes", default="2,3,4", show_default=True, callback=numbers, help="Numbers of ranks."
    )
    @click.option("--files", "chosen", default="*", help="Shell pattern of files, such as '*process_sets*'.")
    @click.option(
        "--tests", "patterns", multiple=True, help="Name or shell pattern of tests; may be repeated."
    )
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
    @click.option("--limit", default=suite.limit, show_default=True, help="Seconds a test may take.")
    @click.option("--launch", default=LAUNCH, show_default=True, help="What starts a job.")
    @click.option(
        "--json",
        "file",
        type=click.Path(path_type=Path),
        help="Write all results there. What it holds of tests that do not run now is kept.",
    )
    @click.option(
        "--resume",
        is_flag=True,
        help="Run only what --json does not hold: go on with a run that was stopped.",
    )
    @click.option("--show", is_flag=True, help="Run nothing; show what --json holds.")
    @click.option("--page", is_flag=True, help="Write the page in docs.")
    def main(**options: Any) -> None:
        run(suite, **options)

    return main


def stop(_number: int, _frame: object) -> None:
    """Handles a signal to end: the job ends, and what it has told is kept."""
    raise Stopped


def run(
    suite: Suite,
    checkout: Path,
    sizes: list[int],
    chosen: str,
    patterns: tuple[str, ...],
    alone: str,
    commit: str,
    limit: float,
    launch: str,
    file: Path | None,
    resume: bool,
    show: bool,
    page: bool,
) -> None:
    """What the command does."""
    names = suite.files_to_run(checkout, [f"*{chosen}"])
    if not names:
        raise click.UsageError(f"{checkout / 'test'}: no such tests; is {checkout} a source tree of Horovod?")
    if show and not (file and file.exists()):
        raise click.UsageError("--show needs --json with results")
    known = suite.known()
    results, ran = load(file.read_text()) if file and file.exists() else ({}, {})
    if not show:
        ran = what_ran(checkout, launch, suite.packages, commit)
        wanted = [f"*{pattern}" for pattern in patterns] or ["*"]
        job = Job(launch, checkout, limit)
        signal.signal(signal.SIGTERM, stop)
        try:
            for _ in run_suite(suite, job, sizes, names, wanted, ALONE[alone], results, resume):
                if file:
                    whole = file.with_suffix(".part")  # a signal may come amid the writing
                    whole.write_text(dump(results, ran))
                    whole.replace(file)
        except Stopped:
            sys.exit("stopped; --resume goes on with what --json holds")
    click.echo(report(results, known))
    if page:
        suite.page.write_text(horovod_page.page(results, ran, known, suite.intro))
    sys.exit(bool(failures(results, known)))


if __name__ == "__main__":
    command(TORCH)()
