"""The queue of finished works that a session's clients wait on."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from comm.sessions import ranks
from slipstream import _core
from slipstream.base.errors import SlipstreamError


def test_tokens_come_as_works_finish() -> None:
    with ranks(2) as (a, b):
        completions = _core.Completions()
        mine = [np.ones(10, np.float32) for _ in range(20)]
        theirs = [np.ones(10, np.float32) for _ in range(20)]
        works = [a.all_reduce(x) for x in mine]
        for token, work in enumerate(works):
            completions.add(work, token)
        assert completions.wait(0.05) is None
        others = [b.all_reduce(x) for x in theirs]
        assert sorted(completions.wait(30) for _ in works) == list(range(20))  # type: ignore[type-var]
        assert all(work.wait(0) for work in works)
        assert all((x == 2).all() for x in mine)
        assert all(work.wait(30) for work in others)
        assert completions.wait(0) is None


def test_a_failed_work_gives_its_token_and_then_its_error() -> None:
    with ranks(2) as (a, _):
        completions = _core.Completions()
        array = np.ones(10, np.float32)
        work = a.all_reduce(array)
        completions.add(work, 3)
        a.session.abort("on purpose")
        assert completions.wait(30) == 3
        with pytest.raises(SlipstreamError, match="on purpose"):
            work.wait(0)
        completions.add(work, 4)
        assert completions.wait(0) == 4


def test_each_token_goes_to_one_thread_and_close_ends_all() -> None:
    completions = _core.Completions()
    seen: list[int] = []
    ended: list[int] = []

    def reader() -> None:
        while (token := completions.wait()) != -1:
            assert token is not None
            seen.append(token)
        ended.append(-1)

    threads = [threading.Thread(target=reader) for _ in range(3)]
    for thread in threads:
        thread.start()
    everything = threading.Event()

    def poster() -> None:
        for token in range(1000):
            completions.post(token)
        everything.set()

    threading.Thread(target=poster).start()
    assert everything.wait(30)
    while len(seen) < 1000:  # the readers need the interpreter: every turn of this loop gives it to them
        threading.Event().wait(0.001)
    completions.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert sorted(seen) == list(range(1000))
    assert len(ended) == 3
    assert completions.wait() == -1


def test_a_queue_may_go_before_its_works() -> None:
    with ranks(2) as (a, b):
        mine, theirs = np.ones(10, np.float32), np.ones(10, np.float32)
        completions = _core.Completions()
        work = a.all_reduce(mine)
        completions.add(work, 1)
        del completions
        other = b.all_reduce(theirs)
        assert work.wait(30)
        assert other.wait(30)
