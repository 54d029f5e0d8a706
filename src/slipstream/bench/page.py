"""Puts saved records into a Markdown page, between marks.

    python -m slipstream.bench.page docs/benchmarks.md NAME RECORD.json...

The page has the lines ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``; what stands between is replaced by the
tables of the records, in the order given.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.bench.kinds import kind_of

__all__ = ["main", "render", "renew", "replace_between"]


def render(records: Sequence[Mapping[str, Any]]) -> str:
    """The records in Markdown, one after another; ValueError for one that `slipstream bench` did not make."""
    return "\n\n".join(kind_of(record).page(record).markdown() for record in records)


def replace_between(document: str, name: str, text: str) -> str:
    """``document`` with ``text`` between the marks of that name; ValueError if it lacks them."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, first, rest = document.partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise ValueError(f"the document lacks {begin} and {end}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def renew(page: Path, name: str, text: str) -> None:
    """`replace_between` in a file."""
    page.write_text(replace_between(page.read_text(encoding="utf-8"), name, text), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Renews one place of a page; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    page, name, paths = Path(given[0]), given[1], given[2:]
    records = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    renew(page, name, render(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
