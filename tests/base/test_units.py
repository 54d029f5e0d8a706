"""Rates, sizes and times as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.base.units import format_rate, parse_duration, parse_rate, parse_size


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("500mbit", 500_000_000),
        ("2.5gbit", 2_500_000_000),
        ("10 Gbit/s", 10**10),
        ("7bit", 7),
        ("64kbit", 64_000),
        ("100gbps", 10**11),
        ("100Gbps", 10**11),
        ("100Gb", 10**11),
        ("1.5 Mb/s", 1_500_000),
    ],
)
def test_rates(text: str, bits: int) -> None:
    assert parse_rate(text) == bits


@pytest.mark.parametrize(
    "text", ["", "500", "500m", "fast", "0mbit", "-1mbit", "1e3mbit", "1000tbit", "10mbits"]
)
def test_bad_rates(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["100GB", "100GB/s", "100gBps"])
def test_a_rate_in_bytes_is_refused_and_told_in_bits(text: str) -> None:
    with pytest.raises(ValueError, match=r"bytes.*such as 800gbit"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["500mb", "500 mb/s", "1.5gb"])
def test_a_rate_that_may_be_in_bytes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"may be bits or bytes; for bits write [\d.]+[mg]bit"):
        parse_rate(text)


@given(st.integers(1, 10**9).map(lambda kilobits: kilobits * 1000))
def test_a_written_rate_is_read_back(rate: int) -> None:
    assert abs(parse_rate(format_rate(rate)) - rate) <= rate * 1e-6


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4", 4),
        ("4B", 4),
        ("64K", 65536),
        ("16M", 16 << 20),
        ("64kib", 65536),
        ("2MiB", 2 << 20),
        ("1TiB", 1 << 40),
        ("64KB", 64_000),
        ("1.5GB", 1_500_000_000),
        ("1.3GB", 1_300_000_000),
        ("2 TB", 2 * 10**12),
    ],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


def test_a_rounded_size_may_be_any_number() -> None:
    assert parse_size("1.3GiB", rounded=True) == round(1.3 * 2**30)
    assert parse_size("64K", rounded=True) == 65536
    assert parse_size("0.6", rounded=True) == 1


@pytest.mark.parametrize("text", ["", "K", "1.0001K", "1.3GiB", "4iB", "-4", "4X", "9999999G", "9" * 400])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("5s", 5),
        ("250ms", 0.25),
        ("10us", 1e-5),
        ("2m", 120),
        ("1.5min", 90),
        ("1.5h", 5400),
        ("5e-1s", 0.5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


def test_a_time_without_a_unit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'50' is not a time: it has no unit; write 50ms or 50s"):
        parse_duration("50")


@pytest.mark.parametrize("text", ["", "s", "-1s", "5 days", "1e999", "999999999h", "nans", "infs"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(ValueError, match="time"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["5M", "5S", "5MS", "5Min"])
@pytest.mark.parametrize("bare", [True, False])
def test_units_of_time_are_case_sensitive(text: str, bare: bool) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is not a time: .*us, ms, s, m, min or h .small letters."):
        parse_duration(text, bare=bare)


def test_a_number_alone_may_be_seconds() -> None:
    assert parse_duration("5e-1", bare=True) == parse_duration("5e-1s") == 0.5
