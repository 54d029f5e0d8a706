"""Rates, sizes and times as people write them."""

from __future__ import annotations

import math
import re

__all__ = ["TIME_UNITS", "format_rate", "parse_duration", "parse_rate", "parse_size"]

_NUMBER = r"(\d+(?:\.\d+)?)"
_RATES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
TIME_UNITS = "us, ms, s, m, min or h (small letters)"


def parse_rate(text: str) -> int:
    """Bits a second of ``500mbit``, ``2.5gbit``, ``10Gbit/s``, ``100gbps`` or ``100Gb``.

    ValueError for anything else: a number alone, bytes (``GB`` with a large B), what may be either (``gb``), or
    nothing a second.
    """
    match = re.fullmatch(_NUMBER + r"\s*([kmgt]?)(bit(?:/s)?|bps|b(?:/s)?)", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(
            f"{text!r:.40} is not a rate: a number with kbit, mbit, gbit or tbit, such as 500mbit"
        )
    if match[3].startswith("B"):
        bits = format_rate(8 * float(match[1]) * _RATES[match[2].lower()])
        raise ValueError(
            f"{text!r:.40} is not a rate: B stands for bytes, and rates are in bits a second, such as {bits}"
        )
    if not match[2].isupper() and match[3].lower() in ("b", "b/s"):
        raise ValueError(
            f"{text!r:.40} is not a rate: {match[2]}b may be bits or bytes; for bits write {match[1]}{match[2]}bit"
        )
    rate = round(float(match[1]) * _RATES[match[2].lower()])
    if not 1 <= rate <= 10**14:
        raise ValueError(f"{text!r:.40} is not a rate between 1bit and 100tbit")
    return rate


def format_rate(rate: float) -> str:
    """``500mbit`` of 5e8 bits a second: the largest unit that leaves a short number, read back by `parse_rate`."""
    for unit in ("t", "g", "m", "k"):
        if rate >= _RATES[unit]:
            return f"{round(rate / _RATES[unit], 6):.10g}{unit}bit"
    return f"{rate:.10g}bit"


def format_size(count: float) -> str:
    """``1.5 MiB`` of 1572864 bytes: three digits, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def parse_size(text: str, *, rounded: bool = False) -> int:
    """Bytes of ``4``, ``64K``, ``16MiB``, ``1.3GB`` or ``2TB``; ValueError for anything else.

    ``KB``, ``MB``, ``GB`` and ``TB`` are powers of 1000; ``KiB``, ``MiB``, ``GiB``, ``TiB``, and a letter alone as in
    nccl-tests (``64K``), are powers of 1024. ``rounded``: also of what is no whole number of bytes.
    """
    match = re.fullmatch(_NUMBER + r"\s*([kmgt]?)(i?b)?", text.strip(), re.IGNORECASE)
    if match is None or (not match[2] and (match[3] or "").lower() == "ib"):
        raise ValueError(f"{text!r:.40} is not a size: bytes, or a number with K, MiB, GB or the like")
    base = 1000 if (match[3] or "").lower() == "b" else 1024
    unit: int = base ** _POWERS[match[2].lower()]
    whole, _, part = match[1].partition(".")
    scale: int = 10 ** len(part)
    size, rest = divmod(int(whole + part) * unit, scale)
    if (size, rest) > (2**50, 0) or (rest and not rounded):
        raise ValueError(f"{text!r:.40} is not a whole number of bytes up to 1 PiB")
    return size + (2 * rest >= scale)


def parse_duration(text: str, *, bare: bool = False) -> float:
    """Seconds of ``5s``, ``250ms``, ``5e-1s``, ``2min`` or ``1h``; ValueError for anything else.

    The number is any that `float` takes. ``bare``: a number alone is in seconds; else it is refused.
    """
    number_text = re.sub(r"(us|ms|s|m|min|h)\Z", "", text.strip())
    unit = text.strip()[len(number_text) :]
    try:
        number = float(number_text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        ways = ("a number of seconds, or " if bare else "") + f"a number with {TIME_UNITS}"
        raise ValueError(f"{text!r:.40} is not a time: {ways}, such as 250ms")
    if not unit and number and not bare:
        raise ValueError(
            f"{text!r:.40} is not a time: it has no unit; write {number_text}ms or {number_text}s"
        )
    seconds = number * _TIMES[unit or "s"]
    if seconds > 1e9:
        raise ValueError(f"{text!r:.40} is not a time of at most 1e9 s")
    return seconds
