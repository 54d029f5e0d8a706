"""What was probably meant by a name that is not there."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(name: str, names: Iterable[str], alike: float = 0.6) -> str:
    """The one of ``names`` that is most like ``name``, as a question; "" if none is. ``alike``: how much, 0 to 1."""
    if name.startswith("__"):
        return ""
    ours = {one.lower(): one for one in names}
    close = importlib.import_module("difflib").get_close_matches(name.lower(), ours, n=1, cutoff=alike)
    return f"; did you mean {ours[close[0]]}?" if close else ""
