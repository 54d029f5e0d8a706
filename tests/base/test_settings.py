"""How settings are read."""

from __future__ import annotations

import pytest

from slipstream.base.settings import Settings


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60", 60.0), ("1.5", 1.5), ("60s", 60.0), ("500ms", 0.5), ("5m", 300.0), ("2h", 7200.0)],
)
@pytest.mark.parametrize("name", ["heartbeat", "timeout", "start_timeout", "reducer_heartbeat"])
def test_times_may_have_a_unit(name: str, text: str, seconds: float) -> None:
    found = Settings.from_environment({f"SLIPSTREAM_{name.upper()}": text})
    assert getattr(found, name) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-1", "nan", "inf", "5 days", "ms", "5M"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError,
        match="SLIPSTREAM_TIMEOUT: expected a positive number of seconds, or a time with us, ms, s, m",
    ):
        Settings.from_environment({"SLIPSTREAM_TIMEOUT": text})
