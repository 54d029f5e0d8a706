"""What lanes do for a link: unequal paths, changing paths, resets, loopback. Labs on this machine; needs root.

    python benchmarks/lanes.py                 # all of it: ten minutes
    python benchmarks/lanes.py paths           # 100/200/400/800 Mbit/s: lanes that pull, dealt round robin, gloo
    python benchmarks/lanes.py equal           # 4 hosts at 500 Mbit/s, 1 and 16 lanes
    python benchmarks/lanes.py change          # a path goes from 800 to 50 Mbit/s
    python benchmarks/lanes.py resets          # a connection is reset every 100 ms
    python benchmarks/lanes.py loopback        # 2 processes over tcp: bandwidth, latency and CPU time beside gloo's
    python benchmarks/lanes.py paths --save    # keep the record, and renew docs/benchmarks.md

Every call is checked. Ends with code 1 if a value was wrong or a job failed.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.bench.judgements import Judgement, at_most, judgement_table
from slipstream.bench.page import renew
from slipstream.bench.record import head, keep, origin
from slipstream.bench.samples import spread_cells
from slipstream.bench.shell import SLIPSTREAM, bench_record, in_lab, last_object
from slipstream.bench.table import grid

_HERE = Path(__file__).resolve().parent
_RANK = _HERE / "lanes_rank.py"
_CPU_RANK = _HERE / "lanes_cpu_rank.py"
_DOCUMENT = _HERE.parent / "docs" / "benchmarks.md"
_PATHS = "100mbit,200mbit,400mbit,800mbit"
_SUM = 1500e6
_BY_ITSELF = "no setting, after 3 s"
_BYTES = 64 << 20
_PIECE = 4 << 20
_RUNS = 5
_MOST_CPU = 0.7  # of gloo's, over tcp

Row = tuple[str, ...]


def paths() -> Any:
    """All-reduce of 64 MiB between 2 hosts over four unequal paths: several labs, as luck deals the paths.

    With 16 lanes, and with as many as a link takes by itself, from three seconds on.
    """
    shares: dict[str, list[float]] = {"pull": [], "round robin": [], "gloo": [], _BY_ITSELF: []}
    for _ in range(_RUNS):
        calls = _watch(2, ["--paths", _PATHS], 8, _BYTES, lanes="auto")["calls"]
        late = [end - start for start, end in calls if start - calls[0][0] >= 3]
        shares[_BY_ITSELF].append(_share(statistics.median(late)))
        for name, dealing in (("pull", "pull"), ("round robin", "round_robin")):
            record = _bench(dealing)
            rows = record["sizes"][0]["contenders"]
            shares[name].append(_share(rows["slipstream"]["median"]))
            shares["gloo"].append(_share(rows["gloo"]["median"]))
    return shares


def _paths_rows(shares: Mapping[str, Sequence[float]]) -> list[Row]:
    return [
        (f"unequal paths, {name}", *spread_cells(found, "% of the sum")) for name, found in shares.items()
    ]


def _share(seconds: float) -> float:
    return 100 * 8 * _BYTES / seconds / _SUM


def _bench(dealing: str) -> dict[str, Any]:
    bench = [
        "all_reduce",
        "-np",
        "2",
        "--sizes",
        "64M",
        "--repeats",
        "5",
        "--lanes",
        "16",
        "--against",
        "gloo",
    ]
    return bench_record(bench, ["--hosts", "2", "--paths", _PATHS], {"SLIPSTREAM_DEALING": dealing})


def _watch(
    hosts: int, options: Sequence[str], seconds: float, nbytes: int, *more: str, lanes: int | str = 16
) -> dict[str, Any]:
    rank = [sys.executable, str(_RANK), str(seconds), str(nbytes), *more]
    run = [*SLIPSTREAM, "run", "-np", str(hosts), "--no-prefix", "--", *rank]
    lab = in_lab(["--hosts", str(hosts), *options], run, {"SLIPSTREAM_LANES": str(lanes)})
    found: dict[str, Any] = last_object(lab)
    return found


def equal() -> Any:
    """4 hosts at 500 Mbit/s: 64 MiB with 1 lane and with 16."""
    least = 8 * _BYTES * 1.5 / 500e6
    samples = {}
    for lanes in (1, 16):
        found = _watch(4, ["--rate", "500mbit"], 15, _BYTES, lanes=lanes)
        samples[lanes] = [100 * least / (end - start) for start, end in found["calls"][1:]]
    return samples


def _equal_rows(samples: Mapping[Any, Sequence[float]]) -> list[Row]:
    return [
        (f"4 hosts, 500 Mbit/s, {lanes} lanes", *spread_cells(shares, "% of the limit"))
        for lanes, shares in samples.items()
    ]


def change() -> Any:
    """A path of 800 Mbit/s falls to 50: what comes through in each quarter of a second, as a share of what can."""
    at = 4.0
    records = []
    for _ in range(_RUNS):
        event = f"{at + 2:g}s:path:h1:4:50mbit"
        more = ["--event", event, "--event", event.replace("h1", "h2")]
        records.append(_watch(2, ["--paths", _PATHS, *more], 10, _PIECE, "0", "4"))
    return records


def _change_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    back = [_recovery(found["calls"]) for found in records]
    return [("800 to 50 Mbit/s: back at 90 % of the new sum", *spread_cells(back, "s", ".2f"))]


def _recovery(calls: Sequence[Sequence[float]], least: float = 0.9 * 750e6 / 8, window: float = 0.5) -> float:
    """Seconds from the fall to the end of the first window in which calls were done at ``least`` bytes a second.

    The fall is the last call done before a pause three times as long as usual.
    """
    ends = [end for _, end in calls]
    gaps = [(later - end, end) for end, later in itertools.pairwise(ends) if end > 2]
    usual = statistics.median(gap for gap, _ in gaps)
    fell = next((end for gap, end in gaps if gap > 3 * usual), None)
    if fell is None:
        return 0.0
    for i, end in enumerate(ends):
        first = bisect.bisect_left(ends, max(end - window, fell))
        if end > fell + window and _PIECE * (i - first) / (end - ends[first]) >= least:
            return end - fell
    return float("inf")


def resets() -> Any:
    """A random connection is reset every 100 ms for a minute."""
    calm = _watch(2, ["--rate", "500mbit"], 15, 16 << 20)
    return {"calm": calm, "rough": _watch(2, ["--rate", "500mbit"], 60, 16 << 20, "0.1")}


def _resets_rows(found: Mapping[str, Any]) -> list[Row]:
    rough = found["rough"]
    share = f"{100 * _rate(rough['calls']) / _rate(found['calm']['calls']):.1f} % of calm"
    lost = sum(link["lost"] for link in rough["links"])
    what = f"{rough['resets']} resets in 60 s, {len(rough['calls'])} calls all right"
    return [(what, share, f"{lost} repaired", "")]


def _rate(calls: Sequence[Sequence[float]]) -> float:
    return len(calls) / sum(end - start for start, end in calls)


def loopback() -> Any:
    """2 processes of this host over tcp alone, beside gloo."""
    bench = ["all_reduce", "-np", "2", "--sizes", "4,64M", "--transport", "tcp", "--against", "gloo"]
    return {"bench": bench_record(bench), "cpu": cpu_time(_BYTES, calls=5, repeats=8)}


def _loopback_rows(found: Mapping[str, Any]) -> list[Row]:
    rows: list[Row] = []
    for size in found["bench"]["sizes"]:
        ratio = size["contenders"]["slipstream"]["ratio"]["gloo"]
        spread = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
        rows.append(
            (f"loopback, {size['bytes']} bytes, gloo's time / ours", f"{ratio['value']:.2f}x", spread, "")
        )
    for name, used in found["cpu"].items():
        rows.append((f"loopback, 64 MiB, CPU seconds per GB, {name}", *spread_cells(used["cpu"], "s", ".2f")))
    return rows


def judge(record: Mapping[str, Any]) -> list[Judgement]:
    """How the CPU time of the loopback's all-reduces compares with what is wanted; empty if it was not measured."""
    if "loopback" not in record:
        return []
    used = record["loopback"]["cpu"]
    ours, theirs = (statistics.median(used[name]["cpu"]) for name in ("slipstream", "gloo"))
    return [at_most("loopback, 64 MiB: CPU time relative to gloo's", ours / theirs, _MOST_CPU, form=".2f")]


def cpu_time(nbytes: int, *, calls: int, repeats: int) -> Any:
    """What lanes_cpu_rank.py finds with 2 processes of this host over tcp."""
    rank = [sys.executable, str(_CPU_RANK), str(nbytes), str(calls), str(repeats)]
    run = [*SLIPSTREAM, "run", "-np", "2", "--no-prefix", "--", *rank]
    return last_object(run, {**os.environ, "SLIPSTREAM_TRANSPORT": "tcp"})


# What is measured, and the lines that say it.
_PARTS: dict[str, tuple[Callable[[], Any], Callable[[Any], list[Row]]]] = {
    "paths": (paths, _paths_rows),
    "equal": (equal, _equal_rows),
    "change": (change, _change_rows),
    "resets": (resets, _resets_rows),
    "loopback": (loopback, _loopback_rows),
}


def page(record: Mapping[str, Any]) -> str:
    """What docs/benchmarks.md says of a whole record."""
    rows = [row for name, (_, told) in _PARTS.items() if name in record for row in told(record[name])]
    table = grid(("what", "median", "spread", "runs"), rows)
    judged = judge(record)
    return "\n\n".join([f"{origin(record)}.", table, *([judgement_table(judged)] if judged else [])])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts that were asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(_PARTS)}; all by default")
    parser.add_argument("--save", action="store_true", help="keep the records, renew docs/benchmarks.md")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.parts) - set(_PARTS))
    if unknown:
        parser.error(f"no part {', '.join(unknown)}: expected some of {', '.join(_PARTS)}")
    record = head("lanes")
    for name in given.parts or _PARTS:
        part, told = _PARTS[name]
        try:
            record[name] = part()
        except subprocess.CalledProcessError as error:
            print(f"lanes: {name} failed with code {error.returncode}", file=sys.stderr)
            return 1
        print("\n".join("  ".join(row) for row in told(record[name])), flush=True)
    if judged := judge(record):
        print(judgement_table(judged), flush=True)
    if given.save:
        keep(record, "lanes", _HERE / "results")
        renew(_DOCUMENT, "lanes", page(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
