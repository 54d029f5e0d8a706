"""Runs JAX's own multi-process tests (`tests/multiprocess` of a checkout) on gloo and on slipstream.

    python tests/conformance/jax_suite.py CHECKOUT [--ranks 2,4] [--only all_reduce_test.py] [--json FILE]

The checkout must be of the installed JAX's version. JAX's gloo, and slipstream by MPItrampoline, run the same files
under `slipstream run`. Prints how many tests passed, failed and were skipped, then each failure. The exit status is 1
if slipstream fails a test that gloo does not.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WAYS = {"gloo": "gloo", "slipstream": "mpi"}

Result = tuple[str, str]  # "passed", "failed" or "skipped", and why
Results = dict[str, dict[int, dict[str, Result]]]  # by way, number of processes, test


def run_file(way: str, size: int, file: Path, limit: float) -> dict[str, Result]:
    """Runs the tests of one file; a test has failed if it has on any process."""
    with tempfile.TemporaryDirectory(prefix="jax-suite-") as folder:
        rank = [sys.executable, str(HERE / "jax_suite_rank.py"), str(file), folder]
        command = [sys.executable, "-m", "slipstream", "run", "-np", str(size), "--", *rank]
        env = {**os.environ, "JAX_CPU_COLLECTIVES_IMPLEMENTATION": WAYS[way], "JAX_PLATFORMS": "cpu"}
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
        found["the file"] = ("failed", how)
    return {f"{file.stem}.{name}": result for name, result in found.items()}


def last_words(text: str) -> str:
    """The last line that says something."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")[:200]


def read(path: Path) -> dict[str, Result]:
    """The results in one process's file, which has none if the process has been killed."""
    if not path.exists() or not path.stat().st_size:
        return {}
    found: dict[str, Result] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        broken = next((one for kind in ("failure", "error") for one in case.iter(kind)), None)
        skipped = case.find("skipped")
        if broken is not None:
            found[name] = ("failed", last_words(broken.text or broken.get("message") or ""))
        elif skipped is not None or case.get("status") == "notrun" or case.get("result") == "suppressed":
            found[name] = ("skipped", "" if skipped is None else skipped.get("message") or "")
        else:
            found[name] = ("passed", "")
    return found


def united(told: list[Result | None], how: str) -> Result:
    """What all processes say of one test."""
    for result in told:
        if result is not None and result[0] == "failed":
            return result
    if None in told:
        return "failed", f"a process did not get to it: {how}"
    return next((result for result in told if result and result[0] == "passed"), told[0] or ("failed", how))


def new_failures(results: Results) -> list[tuple[int, str]]:
    """The (size, test) that fail on slipstream and pass on gloo."""
    return [
        (size, name)
        for size, tests in results["slipstream"].items()
        for name, (verdict, _) in tests.items()
        if verdict == "failed"
        and results.get("gloo", {}).get(size, {}).get(name, ("passed", ""))[0] != "failed"
    ]


def report(results: Results) -> str:
    """A table, and the failures."""
    lines = ["| collectives | processes | passed | failed | skipped |", "|---|---|---|---|---|"]
    for way, sizes in results.items():
        for size, tests in sizes.items():
            count = Counter(verdict for verdict, _ in tests.values())
            lines.append(f"| {way} | {size} | {count['passed']} | {count['failed']} | {count['skipped']} |")
    for way, sizes in results.items():
        for size, tests in sizes.items():
            lines += ["", f"failures of {way} on {size} processes:"]
            lines += [f"  {name}: {why}" for name, (verdict, why) in tests.items() if verdict == "failed"]
    return "\n".join(lines)


def main() -> None:
    """Runs all of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--ways", default="gloo,slipstream")
    parser.add_argument("--only", action="append", help="the name of a file; may be given several times")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds that a file may take")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    files = sorted((args.checkout / "tests" / "multiprocess").glob("*_test.py"))
    files = [file for file in files if not args.only or file.name in args.only]
    if not files:
        parser.error(f"{args.checkout} has no such tests in tests/multiprocess")
    results: Results = {}
    for size in map(int, args.ranks.split(",")):
        for file in files:
            for way in args.ways.split(","):
                found = run_file(way, size, file.resolve(), args.limit)
                results.setdefault(way, {}).setdefault(size, {}).update(found)
                count = Counter(verdict for verdict, _ in found.values())
                print(f"{way} x{size} {file.name}: {dict(count)}", file=sys.stderr, flush=True)
    if args.json:
        told: dict[str, Any] = {"jax": importlib.metadata.version("jax"), "results": results}
        args.json.write_text(json.dumps(told, indent=1))
    print(report(results))
    if "slipstream" in results and (new := new_failures(results)):
        print("\nnew failures:", *(f"  {name} on {size} processes" for size, name in new), sep="\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
