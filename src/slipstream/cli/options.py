"""What options of several commands have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

__all__ = ["parsed"]

T = TypeVar("T")


def parsed(
    parse: Callable[[str], T],
) -> Callable[[click.Context, click.Parameter, str | None], T | None]:
    """A callback of an option that reads its text; a ValueError becomes a message of the command."""

    def convert(_: click.Context, __: click.Parameter, text: str | None) -> T | None:
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return convert
