"""Groups that a signal's handler keeps a rank from making."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import slipstream
from comm import ranks
from slipstream.comm.membership import job

SCRIPT = Path(__file__).with_name("group_rank.py")


@pytest.mark.parametrize("which", ["world", "own"])
def test_a_group_that_was_interrupted_may_be_made_again(which: str) -> None:
    ranks.run(SCRIPT, 2, args=[which], timeout=60, env={"SLIPSTREAM_TIMEOUT": "10"})


def test_threads_that_make_groups_of_the_same_ranks_at_the_same_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has taken the same number when the first of them is done."""
    both, seen = threading.Barrier(2, timeout=60), threading.local()
    set_up = slipstream.Group._set_up

    def at_the_same_moment(self: slipstream.Group, *args: object) -> None:
        set_up(self, *args)  # type: ignore[arg-type]
        if not getattr(seen, "any", False):
            seen.any = True
            both.wait()

    slipstream.init()
    try:
        monkeypatch.setattr(slipstream.Group, "_set_up", at_the_same_moment)
        with ThreadPoolExecutor(2) as pool:
            first, second = (pool.submit(slipstream.Group) for _ in range(2))
            assert first.result().id != second.result().id
        assert sorted(group.id for group in (first.result(), second.result())) == sorted(
            job.current().group_id((0,), number) for number in (1, 2)
        )
    finally:
        slipstream.shutdown()
