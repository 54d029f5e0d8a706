"""The group of all commands: what it does with names and errors that are common to them."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import click

__all__ = ["Root"]

_OTHER_NAMES = {
    "launch": "run",
    "start": "run",
    "exec": "run",
    "mpirun": "run",
    "horovodrun": "run",
    "doctor": "check",
}  # as other launchers call them


class Root(click.Group):
    """The commands, with answers to what goes wrong in any of them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but what another launcher calls a command is answered with ours."""
        meant = _OTHER_NAMES.get(args[0])
        if meant is not None:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {meant!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does, but Ctrl-C is exit code 130, and errors for ``horovodrun`` name that command."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if ctx.info_name == "horovodrun":  # whose user has typed no `slipstream run`
                error.ctx = ctx
            raise
        except KeyboardInterrupt:
            sys.exit(130)

    def main(self, *args: Any, **options: Any) -> Any:
        """As click does, but says in one line that standard output takes no more, as on a full disk."""
        try:
            return super().main(*args, **options)
        except OSError as error:
            if error.errno != errno.ENOSPC or error.filename is not None:
                raise
            with open(os.devnull, "wb") as nowhere:  # for what Python still has to write at its end
                os.dup2(nowhere.fileno(), 1)
            click.echo(f"Error: cannot write standard output: {error.strerror}", err=True)
            sys.exit(1)
