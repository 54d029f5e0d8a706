"""Runs PyTorch's own `DistributedTest` suite, which ships in its wheel, against gloo and against slipstream.

Prints how many tests passed, failed and were skipped and why; then the failures that gloo does not have (the exit
status is 1 if there are any that `known_exceptions.json` does not excuse), and the tests that gloo skips or fails
and slipstream passes.
"""

from __future__ import annotations

import fnmatch
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from persistent_ranks import Answer, PersistentRanks

HERE = Path(__file__).resolve().parent
RANK_SCRIPT = HERE / "suite_rank.py"
EXCEPTIONS = HERE / "known_exceptions.json"

# Many tests run only if the backend is called "gloo", those of all_to_all only if it is called "mpi": the
# "slipstream-as-..." are slipstream under those names. GROUP, where it differs, is what the default group is made with.
BACKENDS: dict[str, dict[str, str]] = {
    "gloo": {"BACKEND": "gloo"},
    "slipstream-as-gloo": {"BACKEND": "gloo", "SLIPSTREAM_REPLACE": "gloo"},
    "slipstream-as-mpi": {"BACKEND": "mpi", "GROUP": "slipstream"},
    "slipstream": {"BACKEND": "slipstream"},
}
ONLY = {"slipstream-as-mpi": "test_all_to_all*"}  # what is run of a backend, if not all
REFERENCE = "gloo"
VERDICTS = ("passed", "failed", "skipped")

Result = dict[str, Any]  # verdict, reason, seconds, ranks: what each rank said
Results = dict[str, dict[int, dict[str, Result]]]  # by backend, number of ranks, test


def run_suite(backend: str, size: int, patterns: Sequence[str], timeout: float) -> dict[str, Result]:
    """Runs the tests whose names match one of ``patterns`` on ``size`` ranks; ``timeout`` in seconds a test."""
    environment = {**BACKENDS[backend], "MASTER_ADDR": "127.0.0.1", "INIT_METHOD": "file://"}
    results = {}
    with PersistentRanks(RANK_SCRIPT, size, environment) as ranks:
        names = ranks.ask({}, timeout)[0].value
        names = fnmatch.filter(names, ONLY.get(backend, "*"))
        chosen = [name for name in names if any(fnmatch.fnmatchcase(name, p) for p in patterns)]
        for number, name in enumerate(chosen, 1):
            results[name] = run_test(ranks, name, timeout)
            note = f"{results[name]['verdict']} {results[name]['reason']}".strip()
            click.echo(f"{backend} x{size} {number}/{len(chosen)} {name}: {note}", err=True)
    return results


def run_test(ranks: PersistentRanks, name: str, timeout: float) -> Result:
    """Runs one test on all ranks. It failed if it failed anywhere, else it is what rank 0 says (as in PyTorch)."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="suite-") as folder:
        request = {"name": name, "folder": folder}
        answers = ranks.ask(request, timeout, good=lambda value: value["verdict"] != "failed")
    told = [answer.value if answer.kind == "done" else untold(answer, timeout) for answer in answers]
    failed = [rank for rank, value in enumerate(told) if value["verdict"] == "failed"]
    if failed:
        first = min(failed, key=lambda rank: answers[rank].order)
        verdict, reason = "failed", f"rank {first}: {told[first]['reason']}"
    else:
        verdict, reason = told[0]["verdict"], told[0]["reason"]
    return {
        "verdict": verdict,
        "reason": reason,
        "seconds": round(time.monotonic() - start, 2),
        "ranks": told,
    }


def untold(answer: Answer, timeout: float) -> dict[str, str]:
    """The verdict on a rank that gave none."""
    text = str(answer.value)
    if "Timeout (" in text:
        reason = f"hung for {timeout:g} s"
    else:
        reason = text.splitlines()[0]
    return {"verdict": "failed", "reason": reason, "traceback": text}


def new_failures(
    results: Results, backend: str, known: Iterable[dict[str, Any]] = ()
) -> list[tuple[int, str]]:
    """The (size, test) that fail on ``backend`` and not on gloo, without those excused by ``known``."""
    excused = {(entry["backend"], entry["test"]) for entry in known}
    return [
        (size, name)
        for size, tests in results.get(backend, {}).items()
        for name, result in tests.items()
        if result["verdict"] == "failed"
        and results.get(REFERENCE, {}).get(size, {}).get(name, {}).get("verdict") != "failed"
        and (backend, name) not in excused
    ]


def served(results: Results) -> dict[str, dict[str, list[int]]]:
    """The tests that gloo skips or fails and slipstream passes: {test: {backend: sizes}}."""
    found: dict[str, dict[str, list[int]]] = {}
    for backend in results:
        if backend == REFERENCE:
            continue
        for size, tests in results[backend].items():
            reference = results.get(REFERENCE, {}).get(size, {})
            for name, result in tests.items():
                if (
                    result["verdict"] == "passed"
                    and reference.get(name, {}).get("verdict", "passed") != "passed"
                ):
                    found.setdefault(name, {}).setdefault(backend, []).append(size)
    return dict(sorted(found.items()))


def report(results: Results, known: Sequence[dict[str, Any]], verbose: bool) -> str:
    """The tables and lists, as text."""
    lines = [f"{'backend':<20}{'ranks':>6}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}"]
    for backend, sizes in results.items():
        for size, tests in sizes.items():
            count = Counter(result["verdict"] for result in tests.values())
            seconds = sum(result["seconds"] for result in tests.values())
            numbers = f"{count['passed']:>8}{count['failed']:>8}{count['skipped']:>9}{seconds:>9.0f}"
            lines.append(f"{backend:<20}{size:>6}{numbers}")
    lines += ["", "Why tests are skipped (tests, counted once for each number of ranks)"]
    for backend, sizes in results.items():
        why = Counter(
            r["reason"] for tests in sizes.values() for r in tests.values() if r["verdict"] == "skipped"
        )
        lines += [f"  {backend:<20}{count:>5}  {reason}" for reason, count in why.most_common()]
    lines += ["", "All failures"]
    for backend, sizes in results.items():
        for size, tests in sizes.items():
            for name, result in tests.items():
                if result["verdict"] == "failed":
                    lines.append(f"  {backend} x{size} {name}: {result['reason']}")
                    lines += tracebacks(result) if verbose else []
    if REFERENCE in results:
        lines += comparison(results, known)
    return "\n".join(lines)


def tracebacks(result: Result) -> list[str]:
    """What each rank of a failed test printed, indented."""
    lines = []
    for rank, told in enumerate(result["ranks"]):
        lines.append(f"    rank {rank}: {told['verdict']} {told['reason']}")
        lines += [f"      {line}" for line in told["traceback"].splitlines()]
    return lines


def comparison(results: Results, known: Sequence[dict[str, Any]]) -> list[str]:
    """The two lists: failures that gloo does not have, and what only slipstream serves."""
    lines = ["", "Failures that gloo does not have"]
    failures = [
        f"  {backend} x{size} {name}: {results[backend][size][name]['reason']}"
        for backend in results
        if backend != REFERENCE
        for size, name in new_failures(results, backend, known)
    ]
    lines += failures or ["  none"]
    if known:
        lines += ["", "Known exceptions"]
        lines += [f"  {entry['backend']} {entry['test']}: {entry['reason']}" for entry in known]
    lines += ["", "Tests that gloo skips or fails and slipstream passes"]
    extra = served(results)
    for name, where in extra.items():
        sizes = "; ".join(f"{backend} on {', '.join(map(str, n))}" for backend, n in where.items())
        size = next(iter(where.values()))[0]
        gloo = results[REFERENCE][size][name]
        lines.append(f"  {name}: {sizes} (gloo: {gloo['verdict']}, {gloo['reason']})")
    return lines if extra else [*lines, "  none"]


def load_exceptions() -> list[dict[str, Any]]:
    """The failures known and excused: a list of {"backend", "test", "reason"}."""
    known: list[dict[str, Any]] = json.loads(EXCEPTIONS.read_text())
    return known


def split(_context: click.Context, _parameter: click.Parameter, value: str) -> list[str]:
    """A list from a comma-separated option."""
    return [part.strip() for part in value.split(",") if part.strip()]


EPILOG = """\b
Examples:
  python tests/conformance/torch_suite.py
  python tests/conformance/torch_suite.py --np 2 --backend gloo,slipstream --test '*all_gather*'
  python tests/conformance/torch_suite.py --np 4 --test test_barrier --verbose
  python tests/conformance/torch_suite.py --json suite.json
"""


@click.command(epilog=EPILOG, help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--np", "sizes", default="2,3,4", show_default=True, callback=split, help="Numbers of ranks.")
@click.option(
    "--backend", "backends", default=",".join(BACKENDS), show_default=True, callback=split, help="Back ends."
)
@click.option("--test", "patterns", multiple=True, help="Name or shell pattern of tests; may be repeated.")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds a test may take.")
@click.option(
    "--json", "file", help="Write all results, with the tracebacks of every rank, there ('-': stdout)."
)
@click.option("--verbose", is_flag=True, help="Print the tracebacks of failed tests.")
def main(
    sizes: list[str],
    backends: list[str],
    patterns: tuple[str, ...],
    timeout: float,
    file: str | None,
    verbose: bool,
) -> None:
    unknown = sorted(set(backends) - set(BACKENDS))
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(BACKENDS)}")
    if not all(size.isdigit() and int(size) > 0 for size in sizes):
        raise click.BadParameter("--np takes numbers of ranks, such as 2,3,4")
    known = load_exceptions()
    results: Results = {
        backend: {int(size): run_suite(backend, int(size), patterns or ("*",), timeout) for size in sizes}
        for backend in backends
    }
    if file == "-":
        click.echo(json.dumps(results, indent=1))
    elif file:
        Path(file).write_text(json.dumps(results, indent=1))
    click.echo(report(results, known, verbose), err=file == "-")
    compared = REFERENCE in backends
    sys.exit(any(new_failures(results, b, known) for b in backends if b != REFERENCE) if compared else 0)


if __name__ == "__main__":
    main()
