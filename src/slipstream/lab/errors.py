"""What a lab raises."""

from __future__ import annotations

__all__ = ["LabError"]


class LabError(RuntimeError):
    """The lab cannot do what was asked; the text says what is missing and what to do."""
