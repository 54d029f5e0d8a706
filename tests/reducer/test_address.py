"""A reducer that comes back under another address, as a pod does that was made anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from reducer import cluster
from reducer.cluster import needs_lab
from slipstream.lab import Lab, registry

RANK = Path(__file__).with_name("losses_rank.py")


@needs_lab
@pytest.mark.timeout(180)
def test_a_reducer_that_has_moved_is_used_again(tmp_path: Path) -> None:
    with (
        Lab(2, reducers=2) as lab,
        cluster.reducers(lab, tmp_path) as servers,
        cluster.job(lab, tmp_path / "job", lab.hosts[:2], [str(RANK), str(tmp_path / "job")]) as job,
    ):
        job.wait_for(lambda: job.uses("11"), "work with both reducers")
        servers.close("r1")
        job.wait_for(lambda: job.uses("01"), "the loss of one")
        hosts = registry.folder_of(lab.name) / "hosts"
        text = hosts.read_text()
        moved = text.replace(f"{lab.address('r1')} r1\n", f"{lab.address('r2')} r1\n")
        assert moved != text
        hosts.write_text(moved)
        job.wait_for(lambda: job.uses("11"), "work with one that has moved")
        job.stop()
