"""The file in which choices are remembered: read strictly, written whole, and never worth a job.

A choice belongs to a cluster (hosts, ranks, the classes of the network, reducers), to what may be tuned, to a class of
sizes, and to a wire type. Rank 0 reads the file as a job starts, and tells the others.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipstream.base.dtypes import WIRE_NAMES, WireType
from slipstream.base.outputs import is_pipe
from slipstream.comm.tuning.candidates import Candidate, Traffic, Way
from slipstream.plan.choose import carries
from slipstream.plan.registry import algorithms
from slipstream.plan.topology import Network

__all__ = ["Entry", "cache_file", "cluster_name", "parse", "read", "remember", "text_of"]

_VERSION = 2
_MOST_ENTRIES = 256
_MOST_BYTES = 1 << 20
_CLUSTER_LETTERS = 200


@dataclass(frozen=True)
class Entry:
    """A choice. ``tunes``: auto or on; ``magnitude``: bits of the sizes; ``wire``: what the data travels as.

    ``lanes``: None if it says nothing of them; ``seconds``: that it took; ``before``: that the defaults took;
    ``when``: seconds since 1970.
    """

    cluster: str
    tunes: str
    magnitude: int
    wire: str
    algorithm: str
    chunk_bytes: int
    reducers: bool
    lanes: int | None
    seconds: float
    before: float
    when: float

    @property
    def candidate(self) -> Candidate:
        """The choice as the search knows it."""
        return Candidate(Way(self.algorithm, self.chunk_bytes, self.reducers), self.lanes)

    @property
    def traffic(self) -> Traffic:
        """The all-reduces that it is for."""
        return Traffic(self.magnitude, WireType[self.wire.upper()])

    @property
    def key(self) -> tuple[str, str, Traffic]:
        """What there is one choice for."""
        return self.cluster, self.tunes, self.traffic


def cluster_name(hosts: Sequence[int], network: Network, reducers: int) -> str:
    """What a choice depends on: ``hosts``, of each rank of the group, the measured classes, and how many reducers.

    >>> cluster_name((0, 0, 1, 1), Network(), 0)
    '2 hosts with 2 ranks each, about 1 Gbit/s and 0.1 ms, 0 reducers'
    """
    counts = sorted(Counter(hosts).values())
    each = f"{counts[0]} rank{'' if counts[0] == 1 else 's'} each" if counts[0] == counts[-1] else ""
    ranks = each or ", ".join(map(str, counts)) + " ranks"
    rate, latency = round(math.log10(8 / network.inter_beta)), round(math.log10(network.inter_alpha))
    return (
        f"{len(counts)} hosts with {ranks}, about {10.0 ** (rate - 9):g} Gbit/s and {10.0 ** (latency + 3):g} ms, "
        f"{reducers} reducers"
    )


def cache_file(setting: str | None, environ: dict[str, str] | None = None) -> Path | None:
    """Where choices are remembered: ``setting`` is that of SLIPSTREAM_TUNING_CACHE. None: nowhere."""
    if setting == "off":
        return None
    if setting is not None:
        return Path(setting)
    environ = dict(os.environ) if environ is None else environ
    base = environ.get("XDG_CACHE_HOME") or ""
    home = environ.get("HOME") or ""
    if not os.path.isabs(base):
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    return Path(base) / "slipstream" / "tuning" / "choices.json"


def parse(text: str | bytes) -> list[Entry]:
    """The entries of a file; ValueError for anything that slipstream would not have written."""
    if len(text) > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES} bytes")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from None
    if (
        not isinstance(found, dict)
        or found.get("version") != _VERSION
        or set(found) != {"version", "choices"}
    ):
        raise ValueError(f"not of version {_VERSION}")
    choices = found["choices"]
    if not isinstance(choices, list) or len(choices) > _MOST_ENTRIES:
        raise ValueError(f"not a list of at most {_MOST_ENTRIES} choices")
    return [_entry(one) for one in choices]


def _entry(one: Any) -> Entry:
    if not isinstance(one, dict) or set(one) != set(Entry.__dataclass_fields__):
        raise ValueError("a choice has other fields")
    lanes = one["lanes"]
    right = (
        isinstance(one["cluster"], str)
        and len(one["cluster"]) <= _CLUSTER_LETTERS
        and one["cluster"].isprintable()
        and one["tunes"] in ("auto", "on")
        and _is_whole(one["magnitude"], 1, 62)
        and one["wire"] in WIRE_NAMES
        and one["algorithm"] in algorithms("all_reduce")
        and (one["wire"] == WIRE_NAMES[0] or carries("all_reduce", one["algorithm"]))
        and _is_whole(one["chunk_bytes"], 1 << 10, 4 << 20)
        and isinstance(one["reducers"], bool)
        and (lanes is None or _is_whole(lanes, 0, 64))
        and all(_is_number(one[name]) for name in ("seconds", "before", "when"))
    )
    if not right:
        raise ValueError("a choice has a value that cannot be")
    return Entry(**one)


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12


def text_of(entries: Iterable[Entry]) -> str:
    """What `parse` reads."""
    return json.dumps({"version": _VERSION, "choices": [asdict(entry) for entry in entries]}, indent=1)


def read(path: Path) -> list[Entry]:
    """The entries; none if there is no such file. OSError or ValueError if it cannot be read, or is no cache."""
    if is_pipe(os.fspath(path)):
        raise ValueError("it is a pipe")
    try:
        with path.open("rb") as file:
            return parse(file.read(_MOST_BYTES + 1))
    except FileNotFoundError:
        return []


def remember(path: Path, entry: Entry) -> None:
    """Adds a choice to the file, in the place of an older one for the same. OSError if it cannot be written.

    A file that is no cache is left as it is: ValueError. Of two jobs that write at the same time one may be forgotten.
    """
    entries = [old for old in read(path) if old.key != entry.key]
    entries = sorted([*entries, entry], key=lambda one: one.when)[-_MOST_ENTRIES:]
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # of mode 0600
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text_of(entries) + "\n")
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
