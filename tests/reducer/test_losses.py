"""One of four reducers is killed, frozen or cut off, again and again, at random moments of a job in a lab."""

from __future__ import annotations

import json
import os
import random
import time
from functools import partial
from pathlib import Path

import pytest

from reducer import cluster
from reducer.cluster import needs_lab
from slipstream.lab import Lab

RANK = Path(__file__).with_name("losses_rank.py")
REPEATS = int(os.environ.get("REDUCER_LOSSES", "200"))
LONGEST_STEP = 5.0  # seconds
WAYS = os.environ.get("REDUCER_WAYS", "kill,freeze,cut").split(",")


def longest(job: cluster.Job, events: list[tuple[float, str]]) -> dict[str, float]:
    """Seconds of the longest step, by what had been done last when it ended."""
    found: dict[str, float] = {}
    for rank in job.lines("slow"):
        for begun, seconds in rank:
            end = float(begun) + float(seconds)
            how = max((event for event in events if event[0] < end), default=(0.0, "none"))[1]
            found[how] = max(found.get(how, 0.0), float(seconds))
    return found


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(60 + 15 * REPEATS)
@needs_lab
def test_losses_at_random_moments(tmp_path: Path) -> None:
    rng = random.Random(int(os.environ.get("REDUCER_LOSSES_SEED", "6")))
    events: list[tuple[float, str]] = []
    with (
        Lab(4, reducers=4, rate="500mbit") as lab,
        cluster.reducers(lab, tmp_path) as servers,
        cluster.job(lab, tmp_path / "job", lab.hosts[:4], [str(RANK), str(tmp_path / "job")]) as job,
    ):
        job.wait_for(lambda: job.uses("1111"), "work with all reducers")
        for repeat in range(REPEATS):
            how, number = WAYS[repeat % len(WAYS)], rng.randrange(4)
            victim = lab.hosts[4 + number]
            lost = job.lost()
            time.sleep(rng.uniform(0, 0.3))  # to be anywhere in a step
            events.append((time.monotonic(), how))
            servers.harm(victim, how)
            job.wait_for(partial(job.missed, lost, number), f"loss {repeat}, by {how}")
            time.sleep(rng.uniform(0, 0.5))
            servers.mend(victim, how)
            job.wait_for(lambda: job.uses("1111"), f"return {repeat}, after {how}")
        job.stop()
        seconds = longest(job, events)
        steps, most = (max(float(found[0][i]) for found in job.lines("end")) for i in (0, 1))
    print(
        json.dumps({"losses": REPEATS, "steps": steps, "longest": most, "longest by what was done": seconds})
    )
    assert most < LONGEST_STEP, seconds
