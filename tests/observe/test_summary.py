"""What the summary says of snapshots that are made up."""

from __future__ import annotations

import json

from observe.snapshots import link, ring, snapshot, steps
from slipstream.observe.summary import report, text


def test_numbers_of_all_ranks_come_together() -> None:
    found = report([snapshot(r, 0.1, 0.02, links) for r, links in enumerate(ring({}))])
    assert found["ranks"] == found["hosts"] == 4
    assert found["steps"]["count"] == 50
    assert round(found["steps"]["compute"], 6) == 0.08
    assert round(found["steps"]["exposed_share"], 6) == 0.2
    assert found["bytes"] == 4 * 400 << 20
    assert found["wire_bytes"] == 4 << 30
    assert found["local_bytes"] == 0
    assert found["retransmits"] == 12
    (row,) = found["operations"]
    assert (row["collective"], row["count"], row["seconds"]) == ("all_reduce", 100, 4.0)
    assert row["algbw"] == (400 << 20) / 4.0
    assert row["busbw"] == (600 << 20) / 4.0
    assert found["straggler"] is None
    assert json.loads(json.dumps(found)) == found


def test_advice_follows_the_numbers() -> None:
    ranks = [snapshot(r, 0.1, 0.06, links) for r, links in enumerate(ring({}))]
    (one,) = report(ranks)["advice"]
    assert "60%" in one
    assert "--wire bf16" in one
    assert "reducers" in one
    assert "compression=" in one
    for rank in ranks:
        rank["saved_bytes"] = 1 << 30
    (one,) = report(ranks)["advice"]
    assert "--wire" not in one
    for rank in ranks:
        rank["reducers"] = 2
    (one,) = report(ranks)["advice"]
    assert "reducers" not in one  # the job has some
    ranks[1]["steps"] = steps(0.1, 0.01)
    (one,) = report(ranks)["advice"]  # the others wait for its compute: fewer bytes would not help
    assert "rank 1" in one
    ranks[1]["steps"] = steps(0.1, 0.053)  # 7 ms of 60 are its compute
    network, compute = report(ranks)["advice"]
    assert "communication takes 53%" in network
    assert "rank 1" in compute
    ranks[1]["steps"] = steps(0.1, 0.025)  # now 35 ms are
    (one,) = report(ranks)["advice"]
    assert "rank 1" in one
    assert report([snapshot(r, 0.1, 0.01) for r in range(2)])["advice"] == []


def test_advice_names_only_what_acts_on_this_job() -> None:
    ranks = [snapshot(r, 0.1, 0.06, faces=[]) for r in range(2)]
    (one,) = report(ranks)["advice"]
    assert "all_reduce(..., wire=...)" in one  # arrays do not travel by --wire
    assert "--wire" not in one
    assert "reducers" not in one  # of two hosts
    assert one.endswith(" or larger batches")
    for rank in ranks:
        rank["faces"] = ["torch.distributed"]
    (one,) = report(ranks)["advice"]
    assert "--wire bf16" in one
    assert "comm_hooks" in one
    assert "DistributedOptimizer" not in one
    for rank in ranks:
        rank["faces"] = ["slipstream.keras", "slipstream.tensorflow"]
    (one,) = report(ranks)["advice"]
    assert "compression= of DistributedOptimizer" in one
    assert "overlap_forward" not in one
    for rank in ranks:
        rank["machine"] = "the same"
    assert report(ranks)["advice"] == []


def test_advice_for_a_slow_link_names_both_ends() -> None:
    (one, *_) = report([snapshot(r, links=[link(1 - r, (60e6, 20e6)[r])]) for r in range(2)])["advice"]
    assert one.endswith("on the host of rank 0, run: slipstream check --link node1")


def test_the_text_has_what_people_look_for() -> None:
    shown = text(report([snapshot(0), None, snapshot(2)]))
    assert "3 ranks on 2 hosts, 10.0 s" in shown
    assert "no answer      rank 1" in shown
    assert "median 100 ms" in shown
    assert "50 ms exposed (50%)" in shown
    assert "<= 16 MiB" in shown
    assert "straggler      none" in shown


def test_the_text_says_how_many_reducers_take_part() -> None:
    found = report([snapshot(r, reducers=2) for r in range(2)])
    assert "2 ranks on 2 hosts, 2 reducers, " in text(found)
    assert "1 reducer, " in text(found | {"reducers": 1})


def test_a_run_without_steps_says_how_to_mark_them() -> None:
    found = report([snapshot(0, steps=steps(0, 0, count=0))])
    assert found["steps"] is None
    assert "mark_step" in text(found)
