"""Ranks as people write them: ``0-3, 8``."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["format_spans"]

_MOST = 8  # spans that are shown


def format_spans(numbers: Iterable[int]) -> str:
    """``0-3, 8`` of 0, 1, 2, 3, 8, in the order given; what is left out of a long list is three dots."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in spans]
    return ", ".join(texts if len(texts) <= _MOST else [*texts[: _MOST - 1], "...", texts[-1]])
