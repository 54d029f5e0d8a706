"""Lanes under real jobs: connections are reset all the time, and what links say of themselves."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from comm import ranks
from slipstream.base.settings import Settings
from slipstream.cli.link_check import table

RANK = Path(__file__).parents[2] / "benchmarks" / "lanes_rank.py"


def watch(seconds: float, nbytes: int, *more: str, n: int = 2, **env: str) -> dict[str, object]:
    arguments = [str(seconds), str(nbytes), *more]
    texts = ranks.run(RANK, n, transport="tcp", args=arguments, env=env, timeout=seconds + 60)
    found: dict[str, object] = json.loads(texts[0].splitlines()[-1])
    return found


@pytest.mark.parametrize("n", [2, 4])
def test_resets_cost_no_error_and_no_value(n: int) -> None:
    found = watch(3, 1 << 20, "0.02", n=n, SLIPSTREAM_LANES="4")
    assert found["resets"] > 20  # type: ignore[operator]
    assert len(found["calls"]) > 10  # type: ignore[arg-type]


def test_links_tell_what_their_lanes_did() -> None:
    found = watch(0.5, 8 << 20, SLIPSTREAM_LANES="3")
    (link,) = found["links"]  # type: ignore[misc]
    assert link["rank"] == 1
    assert [lane["control"] for lane in link["lanes"]] == [True, False, False, False]
    sent = [lane["sent"] for lane in link["lanes"]]
    assert sent[0] == 0
    calls = len(found["calls"])  # type: ignore[arg-type]
    assert sum(sent) >= calls * (8 << 20)
    assert len({lane["local"] for lane in link["lanes"]}) == 4
    assert link["lost"] == 0
    assert not any(lane["zero_copy"] for lane in link["lanes"])  # within a host


def test_dealing_in_turn_is_for_comparison() -> None:
    found = watch(0.5, 8 << 20, SLIPSTREAM_LANES="3", SLIPSTREAM_DEALING="round_robin")
    (link,) = found["links"]  # type: ignore[misc]
    sent = [lane["sent"] for lane in link["lanes"][1:]]
    assert max(sent) < 1.2 * min(sent)


def test_check_link_shows_the_lanes(tmp_path: Path) -> None:
    stand_in = tmp_path / "ssh"
    stand_in.write_text(
        '#!/bin/sh\nwhile [ "$1" = -o ]; do shift 2; done\nshift 2\nSLIPSTREAM_HOST_ID=other exec sh -c "$*"\n'
    )
    stand_in.chmod(0o755)
    command = [
        sys.executable,
        "-m",
        "slipstream",
        "check",
        "--link",
        "somewhere",
        "--seconds",
        "0.3",
        "--lanes",
        "3",
    ]
    environment = {**os.environ, "SLIPSTREAM_INTERFACE": "lo"}
    done = subprocess.run(
        [*command, "--ssh-command", str(stand_in), "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rate"] > 0
    assert len(found["link"]["lanes"]) == 4
    done = subprocess.run(
        [*command, "--ssh-command", str(stand_in)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "control" in done.stdout
    assert "each way" in done.stdout


@pytest.mark.slow
def test_a_minute_of_resets() -> None:
    found = watch(60, 16 << 20, "0.1", SLIPSTREAM_LANES="16")
    assert found["resets"] > 300  # type: ignore[operator]


needs_lab = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="a lab needs root and iproute2"
)


@pytest.mark.alone
@needs_lab
def test_a_lane_that_pulls_takes_more_over_a_faster_path(tmp_path: Path) -> None:
    from slipstream.lab import Lab
    from slipstream.lab.links import path_of

    command = [sys.executable, "-m", "slipstream", "run", "-np", "2", "--no-prefix", "--"]
    with Lab(2, paths="50mbit,200mbit") as lab:
        rank = [sys.executable, str(RANK), "3", str(16 << 20)]
        out = lab.run(
            "h1", [*command, *rank], env={"SLIPSTREAM_LANES": "8"}, capture_output=True, text=True
        ).stdout
    found = json.loads(out.splitlines()[-1])
    (link,), (first,) = found["links"], found["first"]
    by_path: dict[int, list[int]] = {0: [], 1: []}
    for lane, before in itertools.zip_longest(link["lanes"], first, fillvalue=""):
        if lane["control"] or lane["local"] == before == "":
            continue
        if before not in ("", lane["local"]):  # what it has sent may have gone over the one path or the other
            pytest.skip("a lane has connected again: nothing tells how much went over which path")
        ports = [int(lane[side].rpartition(":")[2]) for side in ("local", "remote")]
        by_path[path_of(ports[0], ports[1], 2)].append(lane["sent"])
    if not by_path[0] or not by_path[1]:
        pytest.skip("all lanes took the same path")
    assert sum(by_path[1]) > 2 * sum(by_path[0])


LENDING = """
import json
import numpy as np
import slipstream

def lanes():
    (link,) = slipstream.link_statistics()
    return [lane for lane in link.lanes if not lane.control and lane.up]

slipstream.init()
slipstream.barrier()
while slipstream.all_reduce(np.array([len(lanes())]), op=slipstream.MIN)[0] < 3:
    pass
for _ in range(8):
    slipstream.all_reduce(np.ones(4 << 20, np.float32))
after = [lane.zero_copy for lane in lanes()]
slipstream.barrier()
if slipstream.rank() == 0:
    print(json.dumps([after, sum(lane.zero_copied for lane in lanes())]), flush=True)
slipstream.barrier()
slipstream.shutdown()
"""


@needs_lab
def test_memory_is_not_lent_to_a_kernel_that_copies_it_all_the_same() -> None:
    """It is lent at first, and reports of the kernel end that."""
    from slipstream.lab import Lab

    command = [sys.executable, "-m", "slipstream", "run", "-np", "2", "--no-prefix", "--"]
    with Lab(2, rate="1gbit") as lab:
        out = lab.run(
            "h1",
            [*command, sys.executable, "-c", LENDING],
            env={"SLIPSTREAM_LANES": "3"},
            capture_output=True,
            text=True,
        ).stdout
    after, nbytes = json.loads(out.splitlines()[-1])
    assert after == [False] * 3  # the lab's links are veth
    assert nbytes == 0


@pytest.mark.parametrize(
    ("text", "meaning"), [("auto", "auto"), ("off", "off"), ("64KiB", 64 << 10), ("5000", 5000)]
)
def test_from_which_size_on_sends_are_lent_may_be_given(text: str, meaning: str | int) -> None:
    assert Settings.from_environment({"SLIPSTREAM_ZERO_COPY": text}).zero_copy == meaning


@pytest.mark.parametrize("text", ["on", "", "0", "4095", "2GiB", "-8KiB"])
def test_what_is_no_size_to_lend_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"^SLIPSTREAM_ZERO_COPY: expected auto, off or a size from 4KiB to 1GiB"
    ):
        Settings.from_environment({"SLIPSTREAM_ZERO_COPY": text})


def test_the_table_says_from_which_size_on_lanes_do_not_copy() -> None:
    lane = {"control": False, "local": "", "remote": "", "sent": 1, "rate": 0.0, "rtt": 0.0, "retransmits": 0}
    copying = {**lane, "zero_copied": 0, "zero_copy_from": 32 << 10}
    link = {"lanes": [copying], "lost": 0, "replaced": 0, "encrypted": False}
    found = {"rate": 1e9, "round_trip": 1e-5, "link": link}
    assert "without a copy" not in table(found)
    assert table(found).startswith("1gbit/s each way, 10 us for 4 bytes, not encrypted\n")
    assert "closed" in table(found)
    assert "0.00 ms" not in table(found)  # nothing is known of a lane that is closed
    open_lane = {**copying, "local": "127.0.0.1:1", "remote": "127.0.0.1:2", "rtt": 2e-3}
    assert "2.00 ms" in table({**found, "link": {**link, "lanes": [open_lane]}})
    link["lanes"] = [copying, {**copying, "zero_copied": 3_000_000, "zero_copy_from": 64 << 10}]
    assert "3.0 MB were sent without a copy, from 32 KiB or 64 KiB on" in table(found)
    link["lanes"] = [{**copying, "zero_copied": 3_000_000, "zero_copy_from": 0}]
    assert "3.0 MB were sent without a copy, no more" in table(found)
