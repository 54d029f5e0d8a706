"""Who may be at the store without having authenticated; links have the same limits."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from slipstream.comm.rendezvous import admission
from slipstream.comm.rendezvous.admission import Admission

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
