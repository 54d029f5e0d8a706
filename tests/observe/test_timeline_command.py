"""``slipstream timeline``, as it is typed, on files that are whole, torn, or something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slipstream.base.own_names import own_name
from slipstream.cli.main import main
from slipstream.observe.chrome import introduction
from slipstream.observe.trace_reading import load


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["timeline", *map(str, words)])


def operation(
    rank: int, begin: float, dur: float, nbytes: int, kind: str = "all_reduce", **args: Any
) -> dict[str, Any]:
    about = {"operation": kind, "bytes": nbytes, **args}
    return {
        "name": "g",
        "cat": "operation",
        "ph": "X",
        "ts": begin,
        "dur": dur,
        "pid": rank,
        "tid": 0,
        "args": about,
    }


def bar(cat: str, name: str, begin: float, dur: float) -> dict[str, Any]:
    return {"name": name, "cat": cat, "ph": "X", "ts": begin, "dur": dur, "pid": 0, "tid": 9}


NAME = {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "rank 0 (a)"}}
LINK = {
    "name": "total",
    "cat": "link",
    "ph": "i",
    "ts": 5e6,
    "pid": 1,
    "args": {"peer": 0, "transport": "tcp", "sent": 3 << 20, "received": 7, "lost": 0},
}
EVENTS = [
    NAME,
    operation(0, 1e6, 1000, 1 << 20),
    operation(0, 2e6, 3000, 1 << 20),
    operation(0, 3e6, 4000, 100, error="PeerLost"),
    operation(1, 1e6, 2000, 32 << 20, kind="broadcast"),
    operation(1, 2e6, 10, 8, kind="all_gather") | {"name": own_name("negotiation")},
    bar("steps", "step 2", 1e6, 2e6),
    bar("gradients", "wait", 1e6, 500),
    bar("gradients", "wait", 1e6 + 400, 200),
    bar("negotiation", "loss", 1e6, 4000),
    {"name": "locked", "cat": "negotiation", "ph": "i", "ts": 1e6, "pid": 0, "tid": 9},
    {"name": "5 events dropped", "cat": "timeline", "ph": "i", "ts": 1e6, "pid": 0, "args": {"count": 5}},
    LINK,
]


def written(path: Path, events: list[dict[str, Any]], end: str = "\n]\n") -> Path:
    path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + end)
    return path


def test_summary_as_json(tmp_path: Path) -> None:
    result = call("summary", written(tmp_path / "t", EVENTS), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert (found["ranks"], found["seconds"]) == (2, 4.0)
    rows = {(row["operation"], row["most_bytes"]): row for row in found["operations"]}
    kinds = [
        ("all_reduce", 1 << 20),
        ("all_reduce", 4 << 10),
        ("broadcast", None),
        ("slipstream itself", 4 << 10),
    ]
    assert sorted(rows, key=str) == kinds
    large = rows["all_reduce", 1 << 20]
    assert (large["count"], large["bytes"], large["median"], large["p95"]) == (2, 2 << 20, 0.002, 0.003)
    assert large["rate"] == pytest.approx((2 << 20) / 0.004)
    (step,) = found["steps"]
    assert step["exposed"] == pytest.approx(600e-6)  # the two waits overlap
    assert step["communication"] == pytest.approx(4e-3)  # what is within the steps, of rank 0
    assert found["links"] == [{"rank": 1, **LINK["args"]}]
    assert found["negotiation"] == {"count": 1, "median": 0.004, "total": 0.004}
    assert (found["errors"], found["dropped"], found["lanes_lost"]) == (1, 5, 0)


def test_summary_for_people(tmp_path: Path) -> None:
    output = call("summary", written(tmp_path / "t", EVENTS)).output
    assert output.startswith("2 ranks, 4.00 s\n\nOperations of all ranks\n")
    assert "| all_reduce        | to 1 MiB" in output
    assert "| broadcast         | over 16 MiB" in output
    assert "| communication (of total) | exposed (of total) |" in output
    assert "| 0    | 1     | 2.00 s | 2.00 s | 4.00 ms (0 %)            | 600.0 us (0 %)     |" in output
    assert "| 1         | 0       | tcp       | 3 MiB | 7 B      |" in output
    assert "1 operations failed; 5 events were dropped" in output


def test_an_empty_timeline(tmp_path: Path) -> None:
    assert call("summary", written(tmp_path / "t", [])).output.startswith("0 ranks, 0.0 us")


def test_merge(tmp_path: Path) -> None:
    one = written(tmp_path / "one", [NAME, operation(0, 2, 1, 1), operation(0, 4, 1, 1)])
    two = written(tmp_path / "two", [NAME, operation(1, 3, 1, 1)])
    result = call("merge", one, two, "-o", tmp_path / "all")
    assert result.output == f"{tmp_path}/all: 4 events of 2 ranks\n"
    events = json.loads((tmp_path / "all").read_text())
    assert [event["ph"] for event in events] == ["M", "X", "X", "X"]
    assert [event["ts"] for event in events[1:]] == [2, 3, 4]


def test_files_of_two_jobs_are_merged_with_a_warning(tmp_path: Path) -> None:
    jobs = [introduction(rank, "a", f"job train {rank}") for rank in range(2)]
    one, two = (written(tmp_path / f"{rank}", jobs[rank]) for rank in range(2))
    result = call("merge", one, two, "-o", tmp_path / "all")
    assert "Warning: the files are of 2 starts of jobs: job train 0, job train 1\n" in result.output
    same = call(
        "merge", one, written(tmp_path / "2", introduction(1, "a", "job train 0")), "-o", tmp_path / "all"
    )
    assert "Warning" not in same.output
    unlabelled = written(tmp_path / "3", [{"name": "process_labels", "ph": "M", "pid": 2}])
    assert call("merge", one, unlabelled, "-o", tmp_path / "all").exit_code == 0


@pytest.mark.parametrize("end", ["", ",\n", ',\n{"name":"torn', ',\n{"name":"torn\n'])
def test_a_file_that_is_still_written(tmp_path: Path, end: str) -> None:
    assert load(written(tmp_path / "t", [NAME, operation(0, 2, 1, 1)], end)) == [NAME, operation(0, 2, 1, 1)]


def test_files_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("hello")
    result = call("summary", tmp_path / "other")
    assert (result.exit_code, result.output) == (
        1,
        f"Error: {tmp_path}/other is no timeline: expected a JSON array of trace events\n",
    )
    assert "cannot read" in call("summary", tmp_path / "absent").output
    one = written(tmp_path / "one", [NAME])
    assert "is one of the files to merge" in call("merge", one, "-o", one).output
    assert "cannot write /dev/full: No space left on device" in call("merge", one, "-o", "/dev/full").output
