"""One rank of a test job: runs the functions it is told to, from files it is told, until the pipe closes."""

from __future__ import annotations

from typing import Any

import slipstream.torch as hvd
from faces.persistent import load, serve


def run(request: tuple[str, str, tuple[Any, ...]]) -> Any:
    """Calls a function of a test file: (file, function, arguments)."""
    file, name, arguments = request
    return getattr(load(file), name)(*arguments)


def main() -> None:
    """Serves as a rank."""
    hvd.init()
    serve(run)
    hvd.shutdown()


if __name__ == "__main__":
    main()
