"""What tuning finds, beside every fixed setting: four networks in labs on this machine; needs root.

    python benchmarks/tuning.py                # all networks: about eight minutes
    python benchmarks/tuning.py unequal        # one of equal, unequal, fast, reducer
    python benchmarks/tuning.py --save         # keep the record, and renew docs/benchmarks.md

A job takes 50 steps, of 8 all-reduces of the same bytes each, while it tunes itself. Then the same job runs every
setting (lanes, ways, chunks) in turns, what was chosen among them. Every call is checked. Ends with code 1 if a value
was wrong or a job failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.bench.page import renew
from slipstream.bench.record import head, keep, origin
from slipstream.bench.shell import SLIPSTREAM, in_lab, last_object
from slipstream.bench.table import grid

_HERE = Path(__file__).resolve().parent
_RANK = _HERE / "tuning_rank.py"
_DOCUMENT = _HERE.parent / "docs" / "benchmarks.md"
_STEPS = 50
_SECONDS = 60.0
_LEAST_TURNS = 4  # of a setting that counts
_LEAST = 0.95  # of the best fixed setting's speed

# Each lab, the ranks, the bytes of a step, and the options of the job.
_NETWORKS: dict[str, tuple[dict[str, Any], int, int, Sequence[str]]] = {
    "equal": ({"hosts": 4, "rate": "500mbit"}, 4, 4 << 20, ()),
    "unequal": ({"hosts": 2, "paths": ["100mbit", "200mbit", "400mbit", "800mbit"]}, 2, 16 << 20, ()),
    "fast": ({"hosts": 2}, 2, 1 << 20, ()),  # as fast as the processors: more lanes cost more calls
    "reducer": (
        {
            "hosts": 4,
            "reducers": [{"name": "r1"}, {"name": "r2", "rate": "50mbit"}],
            "rate": "500mbit",
        },
        4,
        4 << 20,
        ("--reducers", "auto"),
    ),
}

Row = tuple[str, ...]


def measure(name: str) -> dict[str, Any]:
    """What `tuning_rank.py` finds on one network."""
    lab, ranks, nbytes, options = _NETWORKS[name]
    rank = [sys.executable, str(_RANK), str(nbytes), str(_STEPS), f"{_SECONDS:g}"]
    run = [*SLIPSTREAM, "run", "-np", str(ranks), "--autotune", "on", *options, "--no-prefix", "--", *rank]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(lab, file)
        file.flush()
        command = in_lab(["--spec", file.name], run, {"SLIPSTREAM_TUNING_CACHE": "off"})
        found: dict[str, Any] = last_object(command)
    return found


def row(name: str, found: Mapping[str, Any]) -> Row:
    """A line: the choice, the best fixed setting, and their ratio."""
    medians = {
        setting: median for setting, (median, turns) in found["fixed"].items() if turns >= _LEAST_TURNS
    }
    best = min(medians, key=lambda setting: medians[setting])
    chosen = medians[found["chosen"]]
    share = medians[best] / chosen
    return (
        name,
        found["chosen"],
        f"{1e3 * chosen:.1f} ms",
        best,
        f"{1e3 * medians[best]:.1f} ms",
        f"{100 * share:.0f} %" + ("" if share >= _LEAST else " (95 wanted)"),
        str(found["settled"] or f"more than {len(found['tuned'])}"),
    )


def page(record: Mapping[str, Any]) -> str:
    """What docs/benchmarks.md says of a record."""
    names = ("network", "chosen", "time", "best fixed setting", "time", "speed of the best", "steps")
    rows = [row(name, record[name]) for name in _NETWORKS if name in record]
    return f"{origin(record)}.\n\n{grid(names, rows)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the networks that were asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(_NETWORKS)}; all by default"
    )
    parser.add_argument("--save", action="store_true", help="keep the record, renew docs/benchmarks.md")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.networks) - set(_NETWORKS))
    if unknown:
        parser.error(f"no network {', '.join(unknown)}: expected some of {', '.join(_NETWORKS)}")
    record = head("tuning")
    for name in given.networks or _NETWORKS:
        try:
            record[name] = measure(name)
        except subprocess.CalledProcessError as error:
            print(f"tuning: {name} failed with code {error.returncode}", file=sys.stderr)
            return 1
        print("  ".join(row(name, record[name])), flush=True)
    if given.save:
        keep(record, "tuning", _HERE / "results")
        renew(_DOCUMENT, "tuning", page(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
