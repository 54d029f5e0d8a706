"""Where the C interface of the package is declared."""

from __future__ import annotations

from pathlib import Path

__all__ = ["get_include"]


def get_include() -> str:
    """The folder that holds ``slipstream.h``, the header of the C interface: for a compiler's ``-I``.

    >>> slipstream.get_include()  # doctest: +SKIP
    '.../slipstream/include'
    """
    return str(Path(__file__).resolve().parents[1] / "include")
