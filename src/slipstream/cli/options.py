"""What options of several commands have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from slipstream.base.misspelt import did_you_mean
from slipstream.base.units import parse_duration

__all__ = ["Name", "Number", "Whole", "file_name", "parsed", "seconds", "time_option"]

T = TypeVar("T")


class Whole(click.IntRange):
    """A whole number; click's own name for it, "integer range", says nothing to people."""

    name = "integer"


class Number(click.FloatRange):
    """A number, likewise."""

    name = "number"


class Name(click.Choice):  # type: ignore[type-arg]  # click 8.1 takes no type
    """One of some names; a message for another one says which was probably meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name; click.BadParameter for another one."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            hint = did_you_mean(str(value), self.choices)
            raise click.BadParameter(error.message.rstrip(".") + hint, ctx, param) from None


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


def time_option(
    name: str, default: float, text: str, *, least: float, most: float
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option that takes a time from ``least`` to ``most`` seconds, as `seconds` reads it."""
    return click.option(
        name,
        metavar="TIME",
        default=f"{default:g}",
        show_default=True,
        callback=parsed(functools.partial(seconds, least=least, most=most)),
        help=f"{text}: seconds, or 90s, 5m.",
    )


def seconds(text: str, *, least: float | None = None, most: float = 1e9) -> float:
    """A time above 0, or from ``least`` on: a number alone is seconds, as in the settings; else ValueError."""
    value = parse_duration(text, bare=True)
    if least is None and not 0 < value <= most:
        raise ValueError(f"{text!r:.40} is not a time above 0")
    if least is not None and not least <= value <= most:
        raise ValueError(f"{text!r:.40} is not a time from {least:g} to {most:g} seconds")
    return value


def file_name(text: str) -> str:
    """The text, which is to be a file's name: ValueError for one that looks like an option, such as the `--`."""
    if text.startswith("-"):
        raise ValueError(f"expected a file, not {text}; a file of that name is ./{text}")
    return text
