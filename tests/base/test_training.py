"""Which calls end a training step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slipstream.base import training


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    monkeypatch.setattr(training, "_explicit", False)
    monkeypatch.setattr(training, "_seen", set())
    found: list[int] = []

    def note() -> None:
        found.append(1)

    training.observe_steps(note)
    yield found
    training.leave_steps(note)


def test_each_step_of_one_optimizer_is_a_step(ends: list[int]) -> None:
    for number in range(1, 4):
        training.step_ended("a")
        assert len(ends) == number


def test_of_several_optimizers_one_step_each_is_a_step(ends: list[int]) -> None:
    for number in range(1, 4):
        training.step_ended("generator")
        training.step_ended("discriminator")
        assert len(ends) == number


def test_a_program_that_marks_its_steps_is_believed(ends: list[int]) -> None:
    training.mark_step()
    training.step_ended("a")
    training.step_ended("a")
    training.mark_step()
    assert len(ends) == 2


def test_nobody_is_told_who_has_stopped_listening() -> None:
    found: list[int] = []

    def note() -> None:
        found.append(1)

    training.observe_steps(note)
    for _ in range(2):
        training.leave_steps(note)
    training.step_ended("a")
    assert not found
