"""Errors have the words that users of Horovod search for."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks
from slipstream.base.errors import Aborted, Mismatch, PeerLost, SlipstreamError, Timeout
from slipstream.faces.horovod.words import add_words, adding_words

RANK = Path(__file__).with_name("left_rank.py")
SHUT_DOWN = "In Horovod's words: Horovod has been shut down"
STALLED = "In Horovod's words: submitted to be reduced, gathered or broadcasted by subset of ranks"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PeerLost("rank 1 left", 1, "h"), SHUT_DOWN),
        (Aborted("rank 1 left"), SHUT_DOWN),
        (Aborted("rank 1 left."), SHUT_DOWN),
        (Timeout("rank 1 left"), STALLED),
    ],
)
def test_an_error_says_it_in_both_words_once(error: SlipstreamError, words: str) -> None:
    for _ in range(2):
        with pytest.raises(type(error)) as caught, adding_words():
            raise error
        assert str(caught.value) == f"rank 1 left. {words}"
    if isinstance(error, PeerLost):
        assert (error.rank, error.host) == (1, "h")


def test_an_error_without_such_words_stays_as_it_is() -> None:
    error = Mismatch("the shapes differ")
    add_words(error)
    assert str(error) == "the shapes differ"


def test_calls_that_are_open_when_another_rank_shuts_down() -> None:
    pytest.importorskip("torch")
    text, other = ranks.run(RANK, 2)
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(errors) == 3, text
    assert "error: " not in other
    for error in errors:
        assert error.count(SHUT_DOWN) == 1, error
    for error in errors[:2]:
        assert "rank 1" in error
    assert "result is lost" in errors[2]
