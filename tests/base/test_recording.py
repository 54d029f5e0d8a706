"""What is recorded for timelines, without one."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from slipstream.base import recording
from slipstream.base.recording import Recorded
from slipstream.observe.chrome import Rows, translate_recorded


@pytest.fixture
def heard() -> Iterator[list[Recorded]]:
    events: list[Recorded] = []
    recording.listen(events.append)
    yield events
    recording.stop_listening(events.append)


def test_spans_and_marks(heard: list[Recorded]) -> None:
    with recording.span("wire", "cast", bytes=8):
        recording.mark("wire", "within")
    recording.record("wire", "known", 5, 7)
    mark, span, known = heard
    assert (mark.track, mark.name, mark.end, mark.details) == ("wire", "within", None, {})
    assert (span.name, span.details, span.nests) == ("cast", {"bytes": 8}, False)
    assert span.end is not None
    assert span.begin <= mark.begin <= span.end
    assert known == Recorded("wire", "known", 5, 7, {}, False)


def test_an_exception_ends_a_span_and_is_named(heard: list[Recorded]) -> None:
    with pytest.raises(KeyError), recording.span("wire", "cast"):
        raise KeyError
    assert heard[0].details == {"error": "KeyError"}


def test_the_program_has_a_row_for_each_thread(heard: list[Recorded]) -> None:
    def work() -> None:
        with recording.timeline_span("outer", batch=1), recording.timeline_span("inner"):
            recording.timeline_mark("here")

    thread = threading.Thread(target=work, name="loader")
    thread.start()
    thread.join()
    work()
    assert {event.track for event in heard} == {"thread loader", f"thread {threading.current_thread().name}"}
    events = translate_recorded(heard, Rows(3), 10**9)
    bars = [event for event in events if event["ph"] != "M"]
    assert len({event["tid"] for event in bars}) == 2  # they nest
    assert [event["name"] for event in bars[:3]] == ["here", "inner", "outer"]
    assert bars[2]["args"] == {"batch": 1}
    assert bars[2]["ts"] == (heard[2].begin + 10**9) / 1000
    assert {event["pid"] for event in events} == {3}


def test_bars_that_overlap_have_rows_of_their_own() -> None:
    recorded = [
        Recorded("wire", str(i), begin, end, {}, False)
        for i, (begin, end) in enumerate([(0, 5), (3, 6), (5, 8)])
    ]
    events = translate_recorded(recorded, Rows(0), 0)
    rows = {event["name"]: event["tid"] for event in events if event["ph"] == "X"}
    assert rows["0"] == rows["2"] != rows["1"]
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert names == ["wire", "wire (2)"]


def test_nobody_listens() -> None:
    assert not recording.recording()
    with recording.span("wire", "cast"):
        recording.mark("wire", "within")


def test_a_child_records_nothing(heard: list[Recorded]) -> None:
    pid = os.fork()
    if pid == 0:
        recording.mark("wire", "child")
        os._exit(7 if recording.recording() or heard else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
