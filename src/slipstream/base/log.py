"""Loggers of processes that hardly ever log: `logging` is imported when there is something to say."""

from __future__ import annotations

import contextlib
import sys

__all__ = ["Log", "speak_as"]

_rank = -1  # of this process, in the job that it entered last


def speak_as(rank: int) -> None:
    """Puts the number of this rank before the warnings that no handler shows."""
    global _rank
    _rank = rank


class Log:
    """The logger ``name`` of `logging`. To import that takes 3 ms, and a host may start many ranks at once.

    Not for what is said when no more files can be opened: the import fails then.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def warning(self, text: str, *values: object) -> None:
        """As `logging.Logger.warning`; on standard error where no handler has been set up."""
        import logging

        logger = logging.getLogger(self._name)
        if _rank < 0 or logger.hasHandlers():
            logger.warning(text, *values, stacklevel=2)
        elif logger.isEnabledFor(logging.WARNING):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # it may be closed, or none
                sys.stderr.write(f"slipstream: rank {_rank}: {text % values}\n")

    def info(self, text: str, *values: object) -> None:
        """As `logging.Logger.info`. Nobody wants to hear of it where nothing has imported `logging`."""
        if "logging" in sys.modules:
            import logging

            logging.getLogger(self._name).info(text, *values, stacklevel=2)

    def debug(self, text: str, *values: object) -> None:
        """As `logging.Logger.debug`. Nobody wants to hear of it where nothing has imported `logging`."""
        if "logging" in sys.modules:
            import logging

            logging.getLogger(self._name).debug(text, *values, stacklevel=2)

    def is_heard(self) -> bool:
        """Whether a handler has been set up for what is logged."""
        if "logging" not in sys.modules:
            return False
        import logging

        return logging.getLogger(self._name).hasHandlers()
