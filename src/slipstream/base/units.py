"""Rates, sizes and times as people write them."""

from __future__ import annotations

import math
import re

__all__ = ["format_rate", "parse_duration", "parse_rate", "parse_size"]

_NUMBER = r"(\d+(?:\.\d+)?)"
_RATES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_rate(text: str) -> int:
    """Bits a second of ``500mbit``, ``2.5gbit`` or ``10Gbit/s``; ValueError for anything else, or nothing a second."""
    match = re.fullmatch(_NUMBER + r"\s*([kmgt]?)bit(?:/s)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(
            f"{text!r:.40} is not a rate: a number with kbit, mbit, gbit or tbit, such as 500mbit"
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


def parse_size(text: str, *, rounded: bool = False) -> int:
    """Bytes of ``4``, ``64K``, ``16M``, ``1.5GB`` or ``2MiB`` (units of 1024); ValueError for anything else.

    ``rounded``: also of ``1.3GB``, which is no whole number of bytes.
    """
    match = re.fullmatch(_NUMBER + r"\s*([kmg]?)(?:i?b)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r:.40} is not a size: bytes, or a number with K, M or G")
    size = float(match[1]) * _SIZES[match[2].lower()]
    if size > 2**50 or (size != int(size) and not rounded):
        raise ValueError(f"{text!r:.40} is not a whole number of bytes up to 1 PiB")
    return round(size)


def parse_duration(text: str) -> float:
    """Seconds of ``5``, ``5s``, ``250ms``, ``10us``, ``2m`` or ``1h``; ValueError for anything else."""
    match = re.fullmatch(_NUMBER + r"\s*(us|ms|s|m|h)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r:.40} is not a time: a number with us, ms, s, m or h, such as 250ms")
    seconds = float(match[1]) * _TIMES[(match[2] or "s").lower()]
    if not math.isfinite(seconds) or seconds > 1e9:
        raise ValueError(f"{text!r:.40} is too long a time")
    return seconds
