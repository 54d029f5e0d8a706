"""Runs mpi4jax's own tests (`tests` of a checkout of its source) on slipstream.

    python tests/conformance/mpi4jax_suite.py CHECKOUT [--ranks 1,2,4] [--only test_scan.py] [--json FILE]

Each file runs under `slipstream run --mpi4jax`: its mpi4jax and mpi4py are slipstream's. Prints how many tests passed,
failed and were skipped, then each failure with its reason. The exit status is 1 if a test fails that `EXPECTED` does
not name.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from jax_suite import Result, last_words, read, united

# Tests that cannot pass, by the begin of their names, and why.
_INSIDE = "tests a private module of mpi4jax (mpi4jax._src), which is not there"
EXPECTED = {
    "test_common.test_abort_on_error": "expects the words that MPI prints when it ends the process; slipstream raises "
    "ValueError when the function is traced",
    "test_common.test_debug_logging": _INSIDE,
    "test_common.test_set_logging_from_envvar": _INSIDE,
    "test_common.test_mpi_abi_": _INSIDE,
    "test_decorators.": _INSIDE,
    "test_jax_compat.": _INSIDE,
    "test_validation.": _INSIDE,
}


def run_file(size: int, file: Path, limit: float) -> dict[str, Result]:
    """The results of one file's tests; a test has failed if it has on any process."""
    with tempfile.TemporaryDirectory(prefix="mpi4jax-suite-") as folder:
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", str(file)]
        # Each process writes a file of its own. One with a failed test (pytest's status 1) does not end the others.
        one = f'"$@" --junitxml={folder}/$SLIPSTREAM_RANK.xml; code=$?; test $code -eq 1 || exit $code'
        rank = ["sh", "-c", one, "sh", *tests]
        command = [sys.executable, "-m", "slipstream", "run", "-np", str(size), "--mpi4jax", "--", *rank]
        env = {**os.environ, "JAX_PLATFORMS": "cpu"}
        try:
            ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit)
            how = f"exit code {ended.returncode}: {last_words(ended.stderr)}" if ended.returncode else ""
        except subprocess.TimeoutExpired:
            how = f"hung for {limit:g} s"
        told = [read(Path(folder) / f"{rank}.xml") for rank in range(size)]
    found = {
        name: united([one.get(name) for one in told], how)
        for name in sorted({n for one in told for n in one})
    }
    if how and not any(verdict == "failed" for verdict, _ in found.values()):
        found[f"{file.stem}.the file"] = ("failed", how)
    return found


def expected(name: str) -> str:
    """Why this test cannot pass; "" if it should."""
    return next((why for begin, why in EXPECTED.items() if name.startswith(begin)), "")


def report(results: dict[int, dict[str, Result]]) -> str:
    """A table, and the failures."""
    lines = ["| processes | passed | failed | skipped |", "|---|---|---|---|"]
    for size, tests in results.items():
        count = Counter(verdict for verdict, _ in tests.values())
        lines.append(f"| {size} | {count['passed']} | {count['failed']} | {count['skipped']} |")
    for size, tests in results.items():
        lines += ["", f"failures on {size} processes:"]
        lines += [
            f"  {name}: {expected(name) or why}"
            for name, (verdict, why) in tests.items()
            if verdict == "failed"
        ]
    return "\n".join(lines)


def unexpected(results: dict[int, dict[str, Result]]) -> list[tuple[int, str]]:
    """The (size, test) that fail and should not."""
    return [
        (size, name)
        for size, tests in results.items()
        for name, (verdict, _) in tests.items()
        if verdict == "failed" and not expected(name)
    ]


def main() -> None:
    """Runs all of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--only", action="append", help="the name of a file; may be given several times")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds that a file may take")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    files = sorted((args.checkout / "tests").rglob("test_*.py"))
    files = [file for file in files if not args.only or file.name in args.only]
    if not files:
        parser.error(f"{args.checkout} has no such tests in tests")
    results: dict[int, dict[str, Result]] = {}
    for size in map(int, args.ranks.split(",")):
        for file in files:
            found = run_file(size, file.resolve(), args.limit)
            results.setdefault(size, {}).update(found)
            count = Counter(verdict for verdict, _ in found.values())
            print(f"{size} processes, {file.name}: {dict(count)}", file=sys.stderr, flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    print(report(results))
    if new := unexpected(results):
        print("\nunexpected failures:", *(f"  {name} on {size}" for size, name in new), sep="\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
