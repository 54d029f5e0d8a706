"""Warnings where nobody has set logging up: on standard error, each with its rank."""

from __future__ import annotations

import logging

import pytest

from slipstream.base import log
from slipstream.base.log import Log, speak_as


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(logging.getLogger("slipstream.test"), "hasHandlers", lambda: False)
    monkeypatch.setattr(log, "_rank", None)
    return Log("slipstream.test")


def test_a_warning_that_no_handler_takes_begins_with_the_rank(
    unheard: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    unheard.warning("before %s", "the start")
    speak_as(3)
    unheard.warning("100 %")
    unheard.info("quiet")
    assert capsys.readouterr().err == "slipstream: before the start\nslipstream: rank 3: 100 %\n"


def test_a_program_may_turn_warnings_off(unheard: Log, capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("slipstream.test").setLevel(logging.ERROR)
    try:
        unheard.warning("not wanted")
    finally:
        logging.getLogger("slipstream.test").setLevel(logging.NOTSET)
    assert capsys.readouterr().err == ""


def test_a_program_with_handlers_gets_records(caplog: pytest.LogCaptureFixture) -> None:
    Log("slipstream.other").warning("of %d", 2)
    assert [record.getMessage() for record in caplog.records] == ["of 2"]
