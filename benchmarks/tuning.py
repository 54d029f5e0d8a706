"""What tuning finds, beside every fixed setting: four networks in labs on this machine; needs root.

    python benchmarks/tuning.py                # all networks: about twelve minutes
    python benchmarks/tuning.py unequal        # one of equal, unequal, fast, reducer
    python benchmarks/tuning.py --save         # keep the record, and renew docs/benchmarks.md

A job takes 50 steps, of 8 all-reduces of the same bytes each, while it tunes itself. Before it, another job takes as
many steps with the defaults: so the time that tuning costs, or gains, is known. Short jobs do that several times. Then
the last tuned job runs every setting (lanes, ways, chunks) in turns, what was chosen among them. Every call is checked.
Ends with code 1 if a value was wrong or a job failed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
_MOST = 1.03  # times as long as with the defaults, while it tunes


class _Network(NamedTuple):
    """``lab``: its specification; ``nbytes``: of an all-reduce; ``options``: of the job; ``pairs``: of jobs that tune
    themselves, and that do not."""

    lab: dict[str, Any]
    ranks: int
    nbytes: int
    options: Sequence[str] = ()
    pairs: int = 1


_NETWORKS = {
    "equal": _Network({"hosts": 4, "rate": "500mbit"}, 4, 4 << 20),
    "unequal": _Network({"hosts": 2, "paths": ["100mbit", "200mbit", "400mbit", "800mbit"]}, 2, 16 << 20),
    # As fast as the processors: more lanes cost more calls. Its 50 steps take a fifth of a second.
    "fast": _Network({"hosts": 2}, 2, 1 << 20, pairs=9),
    "reducer": _Network(
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


def job(network: _Network, mode: str, seconds: float) -> dict[str, Any]:
    """What `tuning_rank.py` finds with ``--autotune`` of this mode."""
    rank = [sys.executable, str(_RANK), str(network.nbytes), str(_STEPS), f"{seconds:g}"]
    run = [*SLIPSTREAM, "run", "-np", str(network.ranks), "--autotune", mode, *network.options]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(network.lab, file)
        file.flush()
        run += ["--no-prefix", "--", *rank]
        command = in_lab(["--spec", file.name], run, {"SLIPSTREAM_TUNING_CACHE": "off"})
        found: dict[str, Any] = last_object(command)
    return found


def measure(name: str) -> dict[str, Any]:
    """The last tuned job's findings, and of each pair of jobs the seconds of all steps: with defaults, and tuned."""
    network, pairs = _NETWORKS[name], []
    for left in reversed(range(_NETWORKS[name].pairs)):
        usual = job(network, "off", 0)
        tuned = job(network, "on", 0 if left else _SECONDS)
        pairs.append([round(sum(one["steps"]), 6) for one in (usual, tuned)])
    return {**tuned, "pairs": pairs}


def share_while_tuning(found: Mapping[str, Any]) -> float:
    """The time of the steps of a job that tunes itself, beside those with the defaults: the median of the pairs."""
    return statistics.median(tuned / usual for usual, tuned in found["pairs"])


def row(name: str, found: Mapping[str, Any]) -> Row:
    """A line: the choice, the best fixed setting, and their ratio."""
    medians = {
        setting: median for setting, (median, turns) in found["fixed"].items() if turns >= _LEAST_TURNS
    }
    best = min(medians, key=lambda setting: medians[setting])
    chosen = medians[found["chosen"]]
    share, cost = medians[best] / chosen, share_while_tuning(found)
    return (
        name,
        found["chosen"],
        f"{1e3 * chosen:.3g} ms",
        best,
        f"{1e3 * medians[best]:.3g} ms",
        f"{100 * share:.0f} %" + ("" if share >= _LEAST else " (95 wanted)"),
        str(found["settled"] or f"more than {len(found['steps'])}"),
        f"{100 * (cost - 1):+.0f} %" + ("" if cost <= _MOST else f" ({100 * (_MOST - 1):.0f} at most)"),
    )


def page(record: Mapping[str, Any]) -> str:
    """What docs/benchmarks.md says of a record."""
    names = (
        "network",
        "chosen",
        "time",
        "best fixed setting",
        "time",
        "speed of the best",
        "steps",
        "time while it tunes",
    )
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
