"""Loggers of processes that hardly ever log: `logging` is imported when there is something to say."""

from __future__ import annotations

import contextlib
import sys

__all__ = ["Log", "speak_as"]

_rank: int | None = None


def speak_as(rank: int) -> None:
    """What is said on standard error begins with this rank from now on."""
    global _rank
    _rank = rank


class Log:
    """The logger ``name`` of `logging`. To import that takes 3 ms, and a host may start many ranks at once.

    Not for what is said when no more files can be opened: the import fails then.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def warning(self, text: str, *values: object) -> None:
        """As `logging.Logger.warning`; on standard error, with the rank, where no handler is set up."""
        if self.is_heard():
            import logging

            logging.getLogger(self._name).warning(text, *values, stacklevel=2)
        elif self._warns():
            rank = "" if _rank is None else f"rank {_rank}: "
            with contextlib.suppress(OSError, ValueError, AttributeError):  # it may be closed, or none
                sys.stderr.write(f"slipstream: {rank}{text % values if values else text}\n")

    def info(self, text: str, *values: object) -> None:
        """As `logging.Logger.info`, likewise only where something has imported `logging`."""
        if "logging" in sys.modules:
            import logging

            logging.getLogger(self._name).info(text, *values, stacklevel=2)

    def debug(self, text: str, *values: object) -> None:
        """As `logging.Logger.debug`. Nobody wants to hear of it where nothing has imported `logging`."""
        if "logging" in sys.modules:
            import logging

            logging.getLogger(self._name).debug(text, *values, stacklevel=2)

    def _warns(self) -> bool:
        """Whether the program has not turned warnings off."""
        if "logging" not in sys.modules:
            return True
        import logging

        return logging.getLogger(self._name).isEnabledFor(logging.WARNING)

    def is_heard(self) -> bool:
        """Whether a handler has been set up for what is logged."""
        if "logging" not in sys.modules:
            return False
        import logging

        return logging.getLogger(self._name).hasHandlers()
