"""Who may be at the store without having authenticated; links have the same limits."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from slipstream.comm.rendezvous import admission
from slipstream.comm.rendezvous.admission import Admission, RefusalLog

ROOT = Path(__file__).resolve().parents[2]


def test_the_store_and_links_have_the_same_limits() -> None:
    header = (ROOT / "native/base/admission.h").read_text()
    limits = re.findall(r"^  (?:size_t|double) (\w+) = ([\d.]+);", header, re.MULTILINE)
    assert {name: float(value) for name, value in limits} == {
        "most": admission.MOST,
        "seconds": admission.SECONDS,
        "grace": admission.GRACE,
    }
    assert dict(re.findall(r'^inline constexpr const char\* (\w+) = "(.*)";', header, re.MULTILINE)) == {
        "kLate": admission.LATE,
        "kGaveWay": admission.GAVE_WAY,
    }


def test_the_store_and_links_log_refusals_alike() -> None:
    header = (ROOT / "native/base/refusal_log.h").read_text()
    limits = re.findall(r"^  static constexpr (?:size_t|double) (\w+) = ([\d.]+);", header, re.MULTILINE)
    assert {name: float(value) for name, value in limits} == {
        "kSeconds": admission.REFUSALS_SECONDS,
        "kMostNamed": admission.MOST_NAMED,
        "kMostReasons": admission.MOST_REASONS,
    }


def test_the_documentation_states_the_limits() -> None:
    text = " ".join((ROOT / "docs/architecture.md").read_text().split())
    assert (
        f"at most {admission.MOST} callers that have not authenticated, each for {admission.SECONDS:g} s"
        in text
    )
    assert f"is {admission.GRACE:g} s old" in text


def test_the_oldest_gives_way_after_its_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST", 3)
    callers: Admission[str] = Admission()
    for now, caller in enumerate("abc"):
        assert callers.room_at() == -math.inf
        assert callers.add(caller, now) is None
    assert callers.room_at() == admission.GRACE
    assert callers.add("d", 3.0) == "a"
    assert len(callers) == 3
    callers.discard("c")
    assert callers.room_at() == -math.inf
    callers.discard("b")
    callers.discard("a")
    assert len(callers) == 1


def test_a_flood_of_refusals_is_counted_and_hides_nobody_else() -> None:
    log = RefusalLog()
    lines = []
    for port in range(100_000):
        log.add(f"10.0.0.1:{port % 60_000}", "wrong mac", now=5.0)
        lines += log.take(now=5.0)
    log.add("10.0.0.1:1", "too slow", now=6.0)
    log.add("[fe80::1]:1", "wrong mac", now=6.0)
    lines += log.take(now=6.0)
    assert lines == [
        "refused 10.0.0.1:0: wrong mac",
        "refused 10.0.0.1:1: too slow",
        "refused [fe80::1]:1: wrong mac",
    ]
    assert log.ends() == 15.0
    assert log.take(now=15.0) == ["refused 99999 more such connections within 10 s"]
    assert log.ends() == math.inf
    log.add("10.0.0.1:7", "wrong mac", now=16.0)
    assert log.take(now=16.0) == ["refused 10.0.0.1:7: wrong mac"]
    assert log.take(now=math.inf) == []


def test_reasons_that_differ_in_a_number_are_one_and_hide_no_other() -> None:
    log = RefusalLog()
    for rank in range(64):
        log.add("10.0.0.1:1", f"another job; it says that it is rank {rank}", now=0.0)
    log.add("10.0.0.1:2", "wrong mac", now=0.0)
    assert log.take(now=math.inf) == [
        "refused 10.0.0.1:1: another job; it says that it is rank 0",
        "refused 10.0.0.1:2: wrong mac",
        "refused 63 more such connections within 10 s",
    ]


def test_what_is_known_of_refusals_is_bounded() -> None:
    log = RefusalLog()
    for number in range(10_000):
        log.add("10.0.0.1:1", f"reason {'x' * (number % 100)}", now=0.0)
    assert len(log.take(now=0.0)) == admission.MOST_REASONS
    for number in range(10_000):
        log.add(f"host-{number}:1", "wrong mac", now=0.0)
    assert len(log.take(now=0.0)) == admission.MOST_NAMED - admission.MOST_REASONS
    more = 20_000 - admission.MOST_NAMED
    assert log.take(now=math.inf) == [f"refused {more} more such connections within 10 s"]
