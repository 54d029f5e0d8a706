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


@pytest.mark.parametrize("how", ["thread", "handler"])
def test_the_first_calls_get_the_same_world(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Of several threads, and of a signal's handler amid the first call: what is kept by group is kept once."""
    set_up, found = slipstream.Group._set_up, []

    def ask() -> None:
        found.append(slipstream.world())

    def meanwhile(self: slipstream.Group, *args: object) -> None:
        monkeypatch.setattr(slipstream.Group, "_set_up", set_up)
        if how == "thread":
            other.start()
            other.join(0.5)  # it waits, or has made a world of its own
        else:
            ask()
        set_up(self, *args)  # type: ignore[arg-type]

    slipstream.init()
    try:
        other = threading.Thread(target=ask)
        monkeypatch.setattr(slipstream.Group, "_set_up", meanwhile)
        ask()
        if how == "thread":
            other.join(60)
        assert len(found) == 2
        assert found[0] is found[1]
    finally:
        slipstream.shutdown()
