"""The timeline of real jobs: what is in it, when it is there, and what happens when there is too much."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comm import ranks, sessions
from slipstream.base.own_names import is_own
from slipstream.base.timelines import file_of
from slipstream.observe import chrome

RANK = Path(__file__).with_name("timeline_rank.py")
CALLS = 20


def load(file: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(file.read_text())
    return events


def named(events: list[dict[str, Any]], cat: str) -> list[dict[str, Any]]:
    return [event for event in events if event.get("cat") == cat]


def run(case: str, file: Path | str, *args: str, transport: str = "tcp", **env: str) -> list[str]:
    return ranks.run(
        RANK, 2, transport=transport, args=[case, *args], env={"SLIPSTREAM_TIMELINE": str(file), **env}
    )


def test_all_ranks_tell_the_time_of_one_clock(tmp_path: Path) -> None:
    run("clocks", tmp_path / "t{rank}.json", transport="mixed")
    found = [
        {event["name"]: event["ts"] for event in named(load(tmp_path / f"t{rank}.json"), "operation")}
        for rank in range(2)
    ]
    for name in (f"gradient {i}" for i in range(CALLS)):
        assert abs(found[0][name] - found[1][name]) < 20e6, name  # microseconds; the clocks are 100 s apart


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_every_operation_is_in_it_once(tmp_path: Path, transport: str) -> None:
    run("operations", tmp_path / "t{rank}.json", transport=transport, SLIPSTREAM_HOST_NAME="node7")
    for rank in range(2):
        events = load(tmp_path / f"t{rank}.json")
        assert {event["pid"] for event in events} == {rank}
        assert events[0]["args"]["name"] == f"rank {rank} (node7)"
        operations = named(events, "operation")
        names = [event["name"] for event in operations]
        for i in range(CALLS):
            assert names.count(f"gradient {i}") == 1
            assert names.count(f"überlappt {i}") == 1
        assert names.count("broadcast") == 1
        assert len(names) == 2 * CALLS + 2
        for event in operations:
            assert event["ph"] == "X"
            assert event["dur"] >= 0
        by_name = {event["name"]: event for event in operations}
        args = by_name["gradient 17"]["args"]
        assert args["bytes"] == 4 << 17
        assert args["dtype"] == "float32"
        assert args["operation"] == "all_reduce"
        assert args["ranks"] == 2
        assert args["algorithm"]
        message = by_name["recv" if rank else "send"]["args"]
        assert message == {
            "operation": "recv" if rank else "send",
            "dtype": "int16",
            "bytes": 10,
            "ranks": 2,
        } | {"peer": 1 - rank}
        starts = [by_name[f"gradient {i}"]["ts"] for i in range(CALLS)]
        assert starts == sorted(starts)
        no_overlap(operations)


def no_overlap(operations: list[dict[str, Any]]) -> None:
    """Operations of a row come one after another, as viewers want them."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for event in operations:
        rows.setdefault(event["tid"], []).append(event)
    for row in rows.values():
        row.sort(key=lambda event: event["ts"])
        for one, following in itertools.pairwise(row):
            assert one["ts"] + one["dur"] <= following["ts"] + 1  # a float of the Unix time has 0.25 us


def test_reset_lanes_are_lost_and_come_back(tmp_path: Path) -> None:
    texts = run("resets", tmp_path / "{rank}", SLIPSTREAM_LANES="3")
    bulk, control = texts[0].split()[:2]  # warnings may follow
    for rank in range(2):
        everything = named(load(tmp_path / str(rank)), "link")
        events = [
            event for event in everything if event["name"] != "total"
        ]  # what the link carried, at its end
        assert {event["args"]["peer"] for event in everything} == {1 - rank}
        story = [(event["name"], event["args"]["lane"]) for event in events]
        assert story[:4] == [
            ("lane lost", 1),
            ("lane reopened", 1),
            ("lane lost", "control"),
            ("link repaired", "control"),
        ]
        # A bulk lane of a rank that leaves may end before its goodbye is read.
        assert {name for name, _ in story[4:]} <= {"lane lost"}
        locals_ = [(event["args"]["old_local"], event["args"].get("new_local")) for event in events]
        assert locals_[0] == (locals_[1][0], None)
        assert locals_[2] == (locals_[3][0], None)
        if rank == 0:  # the other side has its listener's port on all lanes
            assert bulk == locals_[1][0] != locals_[1][1]
            assert control == locals_[3][0] != locals_[3][1]


def test_a_killed_rank_leaves_what_it_had_seen(tmp_path: Path) -> None:
    file = tmp_path / "killed"
    with ranks.started(RANK, 1, args=["killed"], env={"SLIPSTREAM_TIMELINE": str(file)}) as started:
        assert started[0].process.wait(60) == -9
    text = file.read_text()
    assert not text.rstrip().endswith("]")  # as the format allows
    assert named(json.loads(text + "]"), "operation")[0]["name"] == "last words"


def test_what_ends_a_quiet_time_is_written_soon(tmp_path: Path) -> None:
    run("soon", tmp_path / "t")


def test_timelines_by_call(tmp_path: Path) -> None:
    ranks.run(RANK, 2, args=["dynamic", str(tmp_path / "t")])
    for file, name in (("t", "within"), ("t.2", "again")):
        events = named(load(tmp_path / file), "operation")
        assert sorted((event["pid"], event["name"]) for event in events) == [(0, name), (1, name)]


def test_threads_that_begin_one_at_the_same_time(tmp_path: Path) -> None:
    ranks.run(RANK, 1, args=["threads", str(tmp_path)])
    files = sorted(tmp_path.iterdir(), key=lambda file: int(file.name.split("-")[0]))
    found = [event["name"] for file in files for event in named(load(file), "operation")]
    assert found == [f"round {i}" for i in range(20)]


def rows_of(events: list[dict[str, Any]]) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def test_what_the_program_records_and_what_it_negotiates(tmp_path: Path) -> None:
    run("program", tmp_path / "{rank}")
    for rank in range(2):
        events = load(tmp_path / str(rank))
        rows = rows_of(events)
        mark, span = named(events, "program")
        assert (span["name"], span["args"]["batch"], mark["name"]) == ("load data", 7, "epoch")
        assert "a" in span["args"]["path"]
        assert rows[span["tid"]] == rows[mark["tid"]] == "thread MainThread"
        assert span["ts"] <= mark["ts"] <= span["ts"] + span["dur"]
        cycle, wait = named(events, "negotiation")
        assert (cycle["name"], cycle["args"]) == ("CYCLE_START", {"number": 0})
        assert (wait["name"], wait["args"]) == ("allreduce.loss", {"phase": "NEGOTIATE_ALLREDUCE"})
        (loss,) = [event for event in named(events, "operation") if event["name"] == "loss"]
        assert wait["ts"] + wait["dur"] <= loss["ts"] + 1  # it starts when all ranks have called it
        names = [event["name"] for event in named(events, "operation")]
        assert "slipstream: negotiation" in names


def test_details_of_a_call_are_no_part_of_its_kind() -> None:
    call = {"kind": "work", "begin": 0, "end": 1000, "direction": "", "name": b"", "dtype": "f32", "bytes": 4}
    call |= {"ranks": 2, "peer": -1, "error": 0, "wire": ""}
    for shown, operation, algorithm in (
        ("broadcast/binomial[shape=10x64]", "broadcast/binomial", {"algorithm": "binomial"}),
        ("broadcast[shape=10x64]/binomial", "broadcast/binomial", {"algorithm": "binomial"}),
        ("broadcast[shape=10x64]", "broadcast", {}),
        ("broadcast[shape=10x64", "broadcast", {}),  # the trace has cut it
    ):
        call["operation"] = shown
        event = chrome.translate([call], chrome.Rows(0), 0)[-1]
        about = {"operation": "broadcast", "dtype": "f32", "bytes": 4, "ranks": 2, "details": "shape=10x64"}
        assert (event["name"], event["args"]) == ("broadcast", about | algorithm)
        step = call | {"kind": "step", "verb": "send", "step": 1, "chunk": 0, "wire": "", "peer": 1}
        args = chrome.translate([step], chrome.Rows(0), 0)[-1]["args"]
        assert args == {"operation": operation, "name": "", "details": "shape=10x64"}


def test_steps_of_plans(tmp_path: Path) -> None:
    run("operations", tmp_path / "{rank}", SLIPSTREAM_TIMELINE_DETAIL="steps", SLIPSTREAM_BOARD="off")
    for rank in range(2):
        events = load(tmp_path / str(rank))
        rows = rows_of(events)
        steps = named(events, "plan")
        (whole,) = [event for event in named(events, "operation") if event["name"] == "gradient 17"]
        its = [event for event in steps if event["args"]["name"] == "gradient 17"]
        assert {rows[event["tid"]].partition(",")[0] for event in its} >= {"plan send", "plan recv_reduce"}
        for event in its:
            assert event["args"]["operation"] == f"all_reduce/{whole['args']['algorithm']}"
            assert whole["ts"] - 1 <= event["ts"]
            assert event["ts"] + event["dur"] <= whole["ts"] + whole["dur"] + 1
            if "rank" in rows[event["tid"]]:
                assert f"rank {1 - rank}" in rows[event["tid"]]
        no_overlap(steps)
    run("operations", tmp_path / "less{rank}")
    assert not named(load(tmp_path / "less0"), "plan")


def test_operations_and_steps_name_the_type_that_they_cast_to(tmp_path: Path) -> None:
    run("casts", tmp_path / "{rank}", SLIPSTREAM_TIMELINE_DETAIL="steps", SLIPSTREAM_BOARD="off")
    for rank in range(2):
        events = load(tmp_path / str(rank))
        rows = rows_of(events)
        for name, wires in (("int8", {"int8"}), ("exact", {None})):
            (whole,) = [event for event in named(events, "operation") if event["name"] == name]
            assert {whole["args"].get("wire")} == wires
            travels = [
                event["args"].get("wire")
                for event in named(events, "plan")
                if event["args"]["name"] == name and "rank" in rows[event["tid"]]
            ]
            assert set(travels) == wires


def test_buckets_and_steps(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "gradients" / "exchange_rank.py"
    ranks.run(script, 3, args=["average"], env={"SLIPSTREAM_TIMELINE": str(tmp_path / "{rank}")})
    for rank in range(3):
        events = load(tmp_path / str(rank))
        story = named(events, "gradients")
        launched = [event for event in story if event["name"] == "launch"]
        waited = [event for event in story if event["name"] == "wait"]
        assert [event["args"]["bucket"] for event in launched] == [
            event["args"]["bucket"] for event in waited
        ]
        assert all(event["args"]["parameters"] and event["args"]["elements"] for event in launched)
        turns = [event for event in named(events, "operation") if "the turn of an optimizer" in event["name"]]
        assert turns
        assert all(is_own(event["name"]) for event in turns)
        steps = named(events, "steps")
        assert [event["name"] for event in steps] == ["step 2", "step 3", "step 2"]  # of two exchanges
        assert len([event for event in story if event["name"].startswith("backward")]) == len(steps) + 2


def test_off_by_default() -> None:
    ranks.run(RANK, 2, args=["off"])


def test_an_operation_that_failed_says_why(tmp_path: Path) -> None:
    run("failed", tmp_path / "{rank}")
    for rank in range(2):
        (event,) = named(load(tmp_path / str(rank)), "operation")
        assert event["name"] == "disputed"
        assert event["args"]["error"] == "Mismatch"


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with ranks.started(
        RANK, 1, args=["off"], env={"SLIPSTREAM_TIMELINE": str(tmp_path / "no" / "folder")}
    ) as started:
        assert started[0].process.wait(60) == 1
        text = started[0].text()
    folder = tmp_path / "no"
    assert (
        f"CannotWrite: rank 0 cannot write its timeline {folder}/folder: there is no folder {folder}" in text
    )


def test_what_does_not_fit_is_counted() -> None:
    with sessions.ranks(2) as pair:
        pair[0].session.start_trace(4)
        for _ in range(10):
            works = [rank.all_reduce(np.ones(4, dtype=np.float32)) for rank in pair]
            for work in works:
                assert work.wait(60)
        events, dropped = pair[0].session.take_trace()
        assert (len(events), dropped) == (4, 6)
        assert all(event["begin"] <= event["end"] for event in events)
        assert pair[0].session.take_trace() == ([], 0)
        assert pair[1].session.take_trace() == ([], 0)
        pair[0].session.stop_trace()
    event = chrome.dropped(0, 6, 5_000)
    assert event["name"] == "6 events dropped"
    assert event["args"] == {"count": 6}


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("tc") is None, reason="a lab needs root and iproute2")
def test_a_lane_that_stays_slow_is_replaced(tmp_path: Path) -> None:
    from slipstream.lab import Lab
    from slipstream.lab.links import path_of

    rank = Path(__file__).parents[2] / "benchmarks" / "lanes_rank.py"
    command = [sys.executable, "-m", "slipstream", "run", "-np", "2", "--no-prefix", "--"]
    environment = {"SLIPSTREAM_LANES": "8", "SLIPSTREAM_TIMELINE": str(tmp_path / "{rank}")}
    with Lab(2, paths="500kbit,200mbit,200mbit,200mbit") as lab:
        done = lab.run(
            "h1",
            [*command, sys.executable, str(rank), "12", str(16 << 20)],
            env=environment,
            capture_output=True,
        )
    assert done.returncode == 0
    stories = [named(load(tmp_path / str(number)), "link") for number in range(2)]
    replaced = [event for story in stories for event in story if event["name"] == "lane replaced"]
    if not replaced:
        lanes = json.loads(done.stdout.splitlines()[-1])["links"][0]["lanes"][1:]
        ports = [[int(lane[side].rpartition(":")[2]) for side in ("local", "remote")] for lane in lanes]
        if all(path_of(here, there, 4) > 0 for here, there in ports):
            pytest.skip("no lane took the slow path")
    assert replaced
    for story in stories:
        for i, event in enumerate(story):
            if event["name"] == "lane replaced":
                names = [e["name"] for e in story[i + 1 :] if e["args"]["lane"] == event["args"]["lane"]]
                assert names[:1] == ["lane reopened"]


def test_files() -> None:
    assert file_of("a", 0) == "a"
    assert file_of("a", 1) is None
    assert file_of("a{rank}b{rank}", 3) == "a3b3"
