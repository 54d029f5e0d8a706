"""What options of several commands have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from slipstream.base.units import parse_duration

__all__ = ["encrypt_option", "parsed", "seconds"]

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


def encrypt_option() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--encrypt`` of a benchmark."""
    text = "Encrypt slipstream's TCP connections; its peers encrypt nothing. [default: SLIPSTREAM_ENCRYPT]"
    return click.option("--encrypt", is_flag=True, help=text)


def seconds(text: str) -> float:
    """A time above 0: a number alone is seconds, as everywhere in the settings; ValueError for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = parse_duration(text)
    if not 0 < value <= 1e9:  # not a NaN either
        raise ValueError(f"{text!r:.40} is not a time above 0")
    return value
