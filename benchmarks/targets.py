"""What all-reduce between processes of one host is meant to reach, as data, and whether records reach it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.bench.judgements import Judgement, at_least
from slipstream.bench.table import size_text

__all__ = ["IDLE_PERCENT", "SPEEDS", "Speed", "judge"]

_KIB, _MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Speed:
    """``contender`` is at least ``factor`` times as fast as ``peer`` at ``nbytes``, with these numbers of ranks."""

    ranks: tuple[int, ...]
    nbytes: int
    contender: str
    peer: str
    factor: float


SPEEDS = (
    Speed((2,), 64 * _MIB, "slipstream", "gloo", 3.0),
    Speed((4,), 64 * _MIB, "slipstream", "gloo", 2.5),
    Speed((2, 4), 64 * _MIB, "slipstream-shared", "gloo", 5.0),
    Speed((2, 4), 4, "slipstream-torch", "gloo", 4.0),
    Speed((2, 4), 4 * _KIB, "slipstream-torch", "gloo", 4.0),
    Speed((2, 4), 64 * _MIB, "slipstream", "mpi", 1.5),
    Speed((2,), 4, "slipstream", "mpi", 0.5),
    Speed((2,), 4 * _KIB, "slipstream", "mpi", 0.5),
)
# Contender -> by ranks, the least share of what the memory allows, at 64 MiB.
SHARES = {"slipstream": {2: 0.80, 4: 0.45}, "slipstream-shared": {4: 0.65}}
IDLE_PERCENT = 1.0  # of a core, below which an engine with nothing to do must stay


def judge(records: Sequence[Mapping[str, Any]]) -> list[Judgement]:
    """The targets that these records (of `slipstream.bench.collective.command`) allow to be judged."""
    judgements = []
    for record in records:
        n = record["ranks"]
        sizes = {size["bytes"]: size["contenders"] for size in record["sizes"]}
        for speed in SPEEDS:
            row = sizes.get(speed.nbytes, {}).get(speed.contender, {})
            ratio = row.get("ratio", {}).get(speed.peer)
            if n in speed.ranks and ratio is not None:
                text = f"{n} processes, {size_text(speed.nbytes)}: {speed.contender}, speed relative to {speed.peer}"
                judgements.append(at_least(text, ratio["value"], speed.factor, form=".2f"))
        judgements += _shares(record, n)
        if record["idle_cpu"] is not None:
            percent = 100 * record["idle_cpu"]
            text = f"{n} processes: idle engine, share of a core"
            met = percent < IDLE_PERCENT
            judgements.append(Judgement(text, f"< {IDLE_PERCENT:g} %", f"{percent:.2f} %", met))
    return judgements


def _shares(record: Mapping[str, Any], n: int) -> list[Judgement]:
    found = []
    for size in record["sizes"]:
        if size["bytes"] != 64 * _MIB or not size.get("limit"):
            continue
        for contender, wanted in SHARES.items():
            if n in wanted and contender in size["contenders"]:
                share = 100 * size["limit"]["seconds"] / size["contenders"][contender]["median"]
                text = f"{n} processes, {size_text(size['bytes'])}: {contender}, share of the memory's limit"
                found.append(at_least(text, share, 100 * wanted[n], " %", ".0f"))
    return found
