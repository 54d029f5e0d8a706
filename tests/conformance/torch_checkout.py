"""Runs the files of PyTorch's `test/distributed` on CPU against gloo and against slipstream in gloo's place.

CHECKOUT is a source tree of PyTorch, of the version that is installed where possible. The wheel does not hold these
tests. Each file runs with both; they are first in turn, as caches favour the second. Files of which gloo passes no test
do not count. The last lines name the failures that gloo does not have; the exit status is 1 if there are any that
`known_exceptions.json` does not excuse.

The processes of a test are forked from one that has imported PyTorch. With --devices, tests that name no kind of
accelerator run on the CPU, where they would be skipped for want of accelerators.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

HERE = Path(__file__).resolve().parent
EXCEPTIONS = HERE / "known_exceptions.json"
TESTS = Path("test") / "distributed"
VERDICTS = ("passed", "failed", "skipped")
NAMES = ("test_*.py", "*_test.py")
# What marks a file that needs other hardware or another library by its name.
NOT_FOR_CPU = ("*nccl*", "*ucc*", "*cuda*", "*symmetric_memory*", "*nvshmem*", "*xpu*", "*hpu*", "*triton*")
NO_TESTS = 5  # pytest's exit status
LIMIT = "hung: the file took more than"
REPLACED = {"gloo": {}, "slipstream": {"SLIPSTREAM_REPLACE": "gloo"}}


@dataclass
class Outcome:
    """What one backend made of one file: {test: verdict}, why each failed, and the seconds of each that passed."""

    verdicts: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def count(self, verdict: str) -> int:
        return Counter(self.verdicts.values())[verdict]


Results = dict[str, dict[str, Outcome]]  # by file, backend


def files_to_run(checkout: Path, patterns: Sequence[str], excluded: Sequence[str]) -> list[str]:
    """The test files below ``test/distributed`` that match one of ``patterns`` and none of ``excluded``, sorted."""
    root = checkout / TESTS
    names = sorted({str(path.relative_to(root)) for pattern in NAMES for path in root.rglob(pattern)})
    return [
        name
        for name in names
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns or ("*",))
        and not any(fnmatch.fnmatch(name, pattern) for pattern in excluded)
    ]


def run_file(
    checkout: Path, name: str, backend: str, limit: float, test_limit: float, devices: int = 0
) -> Outcome:
    """Runs the file ``name`` for at most ``limit`` seconds, each of its tests for ``test_limit``."""
    with tempfile.TemporaryDirectory(prefix="checkout-") as folder:
        results, output = Path(folder, "results"), Path(folder, "output")
        results.touch()
        environment = {
            **os.environ,
            **REPLACED[backend],
            "CHECKOUT_RESULTS": str(results),
            "CHECKOUT_DEVICES": str(devices),
            "CUDA_VISIBLE_DEVICES": "",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(int(test_limit)),
            "PYTHONPATH": os.pathsep.join(
                map(str, [HERE, checkout / "test", (checkout / TESTS / name).parent])
            ),
            "TEMP_DIR": folder,
            "TMPDIR": folder,
            "OMP_NUM_THREADS": "1",
            "BACKEND": "gloo",
            "WORLD_SIZE": "2",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "checkout_plugin", "-p", "no:cacheprovider"]
        # Their conftest.py is for one version of pytest.
        command += [
            "--noconftest",
            "-c",
            os.devnull,
            "--rootdir",
            str(checkout),
            str(checkout / TESTS / name),
        ]
        with output.open("wb") as stream:
            process = subprocess.Popen(
                command,
                cwd=checkout / "test",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(limit)
            finally:
                _end(process)
        tests = read_results(results.read_text().splitlines(), process.returncode, limit)
        if not tests.verdicts and process.returncode != NO_TESTS:
            last = output.read_text(errors="replace").strip().splitlines()[-1:]
            tests.verdicts["(start)"] = "failed"
            tests.reasons["(start)"] = " ".join(last) or f"exit status {process.returncode}"
        return tests


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and what it has started and left behind in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_results(lines: Iterable[str], status: int, limit: float) -> Outcome:
    """What the plug-in's ``lines`` say; a test that began and did not end has failed."""
    tests = Outcome()
    for entry in map(json.loads, lines):
        name, verdict = entry["name"], entry["verdict"]
        if verdict == "passed" and tests.verdicts.get(name) == "failed":
            continue
        tests.verdicts[name] = verdict
        tests.reasons[name] = entry["reason"]
        tests.seconds[name] = entry["seconds"]
    for name, verdict in tests.verdicts.items():
        if verdict == "began":
            tests.verdicts[name] = "failed"
            hung = status == -signal.SIGKILL
            tests.reasons[name] = f"{LIMIT} {limit:g} s" if hung else f"exit status {status}"
    return tests


def was_cut(tests: Outcome) -> bool:
    """Whether the file took too long, so that some of its tests did not begin."""
    return any(reason.startswith(LIMIT) for reason in tests.reasons.values())


def new_failures(results: Results, known: Iterable[dict[str, Any]] = ()) -> list[tuple[str, str]]:
    """The (file, test) that gloo passes and slipstream does not, without those excused by ``known``.

    Tests that did not begin because the file took too long do not count.
    """
    excused = [entry for entry in known if entry.get("backend") == "checkout"]
    return [
        (file, test)
        for file, backends in results.items()
        if "slipstream" in backends
        for test, verdict in backends["gloo"].verdicts.items()
        if verdict == "passed"
        and backends["slipstream"].verdicts.get(test) != "passed"
        and (test in backends["slipstream"].verdicts or not was_cut(backends["slipstream"]))
        and not any((entry["file"], entry["test"]) == (file, test) for entry in excused)
    ]


def seconds_of_both(backends: dict[str, Outcome]) -> tuple[float, float]:
    """The seconds that gloo and slipstream took for the tests that both pass."""
    gloo, ours = backends["gloo"], backends["slipstream"]
    both = [t for t, v in gloo.verdicts.items() if v == "passed" and ours.verdicts.get(t) == "passed"]
    return sum(gloo.seconds[t] for t in both), sum(ours.seconds[t] for t in both)


def report(results: Results, known: Sequence[dict[str, Any]] = ()) -> str:
    """The table and the lists, as text."""
    width = max([len(file) for file in results] + [len("file")])
    lines = [f"{'file':<{width}}  {'gloo: passed failed skipped':<28}  {'slipstream':<21}  time/gloo's"]
    total = [0.0, 0.0]
    sums: dict[str, Counter[str]] = {backend: Counter() for backend in REPLACED}
    for file, backends in results.items():
        cells = []
        for backend in REPLACED:
            tests = backends.get(backend)
            for verdict in VERDICTS:
                sums[backend][verdict] += tests.count(verdict) if tests else 0
            cells.append(" ".join(f"{tests.count(v):>6}" for v in VERDICTS) if tests else f"{'-':>20}")
        ratio = ""
        if "slipstream" in backends:
            seconds = seconds_of_both(backends)
            total = [a + b for a, b in zip(total, seconds, strict=True)]
            ratio = f"{seconds[1] / seconds[0]:.2f}" if seconds[0] > 0 else ""
        lines.append(f"{file:<{width}}  {cells[0]:<28}  {cells[1]:<21}  {ratio}")
    cells = [" ".join(f"{sums[b][v]:>6}" for v in VERDICTS) for b in REPLACED]
    ratio = f"{total[1] / total[0]:.2f}" if total[0] > 0 else ""
    lines += [f"{'all':<{width}}  {cells[0]:<28}  {cells[1]:<21}  {ratio}", ""]
    lines.append("Failures that gloo does not have")
    failures = new_failures(results, known)
    for file, test in failures:
        reason = results[file]["slipstream"].reasons.get(test, "did not run")
        lines.append(f"  {file} {test}: {reason}")
    return "\n".join(lines if failures else [*lines, "  none"])


def markdown(results: Results) -> str:
    """The table for a page: a row for each file of which gloo passes tests, then the names of the others."""
    lines = ["| file | gloo | slipstream | time |", "|---|---|---|---|"]
    others: dict[str, list[str]] = {
        "skips all its tests": [],
        "fails all its tests": [],
        "finds no tests": [],
    }
    for file, backends in sorted(results.items()):
        gloo, ours = backends["gloo"], backends.get("slipstream")
        if ours is None:
            fate = "fails all its tests" if gloo.count("failed") else "skips all its tests"
            others[fate if gloo.verdicts else "finds no tests"].append(file)
            continue
        mark = " (cut)" if was_cut(gloo) or was_cut(ours) else ""
        counts = ["/".join(str(tests.count(verdict)) for verdict in VERDICTS) for tests in (gloo, ours)]
        seconds = seconds_of_both(backends)
        ratio = f"{seconds[1] / seconds[0]:.2f}" if seconds[0] > 0 else ""
        lines.append(f"| {file}{mark} | {counts[0]} | {counts[1]} | {ratio} |")
    for fate, files in others.items():
        if files:
            lines += ["", f"gloo {fate} in {', '.join(f'`{file}`' for file in files)}."]
    return "\n".join(lines)


def load(file: Path) -> Results:
    """What `--json` wrote."""
    return {
        name: {backend: Outcome(**tests) for backend, tests in backends.items()}
        for name, backends in json.loads(file.read_text()).items()
    }


def dump(results: Results) -> str:
    return json.dumps({f: {b: asdict(t) for b, t in bs.items()} for f, bs in results.items()}, indent=1)


EPILOG = """\b
Examples:
  python tests/conformance/torch_checkout.py ~/pytorch
  python tests/conformance/torch_checkout.py ~/pytorch --file 'algorithms/*' --file test_functional_api.py
  python tests/conformance/torch_checkout.py ~/pytorch --devices 4 --json checkout.json
  python tests/conformance/torch_checkout.py ~/pytorch --show checkout.json --markdown
"""


@click.command(epilog=EPILOG, help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("checkout", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path))
@click.option("--file", "patterns", multiple=True, help="Name or shell pattern of files; may be repeated.")
@click.option("--limit", default=900.0, show_default=True, help="Seconds a file may take.")
@click.option("--timeout", default=100.0, show_default=True, help="Seconds a test may take.")
@click.option("--devices", default=0, show_default=True, help="Accelerators that the CPU stands for.")
@click.option("--json", "file", help="Write all results there ('-': stdout).")
@click.option("--show", type=click.Path(exists=True, path_type=Path), help="Run nothing; show these results.")
@click.option("--markdown", "as_page", is_flag=True, help="Print the table for a page.")
def main(
    checkout: Path,
    patterns: tuple[str, ...],
    limit: float,
    timeout: float,
    devices: int,
    file: str | None,
    show: Path | None,
    as_page: bool,
) -> None:
    names = files_to_run(checkout, patterns, () if patterns else NOT_FOR_CPU)
    if not names:
        raise click.UsageError(
            f"{checkout / TESTS}: no such test files; is {checkout} a source tree of PyTorch?"
        )
    known = json.loads(EXCEPTIONS.read_text())
    if show:
        results = {name: tests for name, tests in load(show).items() if name in names}
    else:
        results = run_files(checkout, names, limit, timeout, devices)
    if file:
        click.echo(dump(results)) if file == "-" else Path(file).write_text(dump(results))
    click.echo(markdown(results) if as_page else report(results, known), err=file == "-")
    sys.exit(bool(new_failures(results, known)))


def run_files(checkout: Path, names: Sequence[str], limit: float, timeout: float, devices: int) -> Results:
    results: Results = {}
    for number, name in enumerate(names, 1):
        found = results[name] = {}
        for backend in list(REPLACED)[:: 1 if number % 2 else -1]:
            start = time.monotonic()
            tests = found[backend] = run_file(checkout, name, backend, limit, timeout, devices)
            counts = ", ".join(f"{tests.count(verdict)} {verdict}" for verdict in VERDICTS)
            click.echo(
                f"{number}/{len(names)} {name} on {backend}: {counts}, {time.monotonic() - start:.0f} s",
                err=True,
            )
            if backend == "gloo" and not tests.count("passed"):
                break
        if not found["gloo"].count("passed"):
            found.pop("slipstream", None)
    return results


if __name__ == "__main__":
    main()
