"""The ranks that the conformance scripts keep: what becomes of those that fail, hang or die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.persistent_ranks import PersistentRanks

SCRIPT = Path(__file__).with_name("persistent_ranks_script.py")


@pytest.fixture(scope="module")
def ranks() -> Iterator[PersistentRanks]:
    with PersistentRanks(SCRIPT, 2) as found:
        yield found


def process_ids(ranks: PersistentRanks) -> list[int]:
    answers = ranks.ask(("nothing", -1), 30)
    assert [answer.kind for answer in answers] == ["done", "done"]
    return [answer.value for answer in answers]


def test_ranks_stay_while_all_is_well(ranks: PersistentRanks) -> None:
    assert process_ids(ranks) == process_ids(ranks)


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("raise", "raised", "ValueError: on purpose"),
        ("exit", "lost", "exit status 7"),
        ("hang", "lost", "Timeout ("),
    ],
)
def test_a_failed_rank_is_named_and_all_are_replaced(
    ranks: PersistentRanks, what: str, kind: str, words: str
) -> None:
    before = process_ids(ranks)
    answers = ranks.ask((what, 1), 1 if what == "hang" else 30)
    assert answers[0].kind == "done"
    assert answers[1].kind == kind
    assert words in answers[1].value
    assert not set(before) & set(process_ids(ranks))


def test_the_last_words_of_a_rank_are_kept(ranks: PersistentRanks) -> None:
    assert "last words" in ranks.ask(("exit", 0), 30)[0].value


def test_an_answer_that_is_not_good_replaces_the_ranks(ranks: PersistentRanks) -> None:
    before = process_ids(ranks)
    assert ranks.ask(("complain", 1), 30, good=lambda value: value != "bad")[1].value == "bad"
    assert not set(before) & set(process_ids(ranks))
