"""A rank of `reducers.py`: all-reduces beside some reducers, without them, and by gloo, in turns in these processes.

    reducers_rank.py TASK

TASK is JSON: ``reducers`` (host:port of each), ``contenders``, ``sizes`` (bytes), ``repeats``, ``warmup``. Contenders:

    reducers-K   a job that uses the first K reducers
    through-K    the same, and small messages go through them whether that was measured to be quicker or not
    ring         the same ranks without reducers, by our ring
    choice       the same, by the algorithm that slipstream chooses for the size
    gloo         torch.distributed's

Connections that were idle begin slowly, and each contender is idle while the others have their turns. So before a turn
that counts it makes a call that does not, of the same size or 16 MiB.

Rank 0 prints a line of JSON for each size: of each contender the seconds of a call, the slowest rank's, by repeat; how
many elements were wrong; of ours the algorithm that was taken, and the reducers that its job did not use at the end.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

import slipstream
from slipstream.base.dtypes import Op
from slipstream.base.settings import Settings, parse_reducers
from slipstream.bench.collective.catalogue import Shape
from slipstream.bench.collective.contenders import Bound, Call, Contender, Place, open_contender
from slipstream.bench.collective.meter import Meter
from slipstream.bench.collective.summary import slowest
from slipstream.bench.collective.task import Task
from slipstream.bench.gathering import gather_objects
from slipstream.comm.membership import job
from slipstream.comm.membership.group import Group, world
from slipstream.plan.choose import SmallCosts, choose

_WAKING = 16 << 20  # bytes at most of a call that does not count


def _waking(contender: Contender) -> Contender:
    """The contender, with a call that does not count before each batch."""

    def bind(call: Call) -> Bound:
        scratch = np.ones(min(call.source.size, _WAKING // call.source.itemsize), call.source.dtype)
        waking = contender.bind(Call(call.name, scratch, scratch, call.op, call.root)).call
        bound = contender.bind(call)

        def before() -> None:
            scratch.fill(1)
            waking()
            bound.before()

        return dataclasses.replace(bound, before=before)

    return dataclasses.replace(contender, bind=bind)


def _in_group(name: str, group: Group, *, ring: bool = False) -> Contender:
    def bind(call: Call) -> Bound:
        if ring:
            choice = choose("all_reduce", call.source.nbytes, group.topology)
            group.use("all_reduce", "ring", choice.chunk_bytes)
        return Bound(lambda: slipstream.all_reduce(call.source, Op.SUM, out=call.target, group=group))

    return Contender(name, bind)


def _open(task: Mapping[str, Any], groups: dict[str, Group]) -> list[Contender]:
    """The contenders, on every rank in the same order; the groups that ours use are added to ``groups``."""
    reducers = parse_reducers(",".join(task["reducers"])) if task["reducers"] else ()
    settings = Settings.from_environment()
    place = Place(slipstream.rank(), slipstream.size(), slipstream.local_rank(), False, settings.interface)
    found = []
    for name in task["contenders"]:
        kind, _, number = name.partition("-")
        if kind in {"reducers", "through"}:
            entered = job.enter(settings=dataclasses.replace(settings, reducers=reducers[: int(number)]))
            if kind == "through":
                entered.reducers.small_costs = SmallCosts(workers=(1, 1), reducer=(0, 0))
            groups[name] = Group(job=entered)
            groups[name].take_reducers()
        elif kind == "gloo":
            found.append(open_contender(name, place))
            continue
        else:
            groups[name] = Group() if kind == "ring" else world()
        found.append(_in_group(name, groups[name], ring=kind == "ring"))
    return found


def _unused(entered: job.Job) -> list[str]:
    """The reducers that any rank of the job does without."""
    mine = [state["name"] for state in entered.reducers.states() if not state["used"]]
    return sorted({name for names in gather_objects(mine) for name in names})


def main() -> None:
    """Measures what the task asks for."""
    task = json.loads(sys.argv[1])
    slipstream.init()
    groups: dict[str, Group] = {}
    contenders = [_waking(contender) for contender in _open(task, groups)]
    shapes = tuple(Shape(nbytes, nbytes // 4, nbytes // 4) for nbytes in task["sizes"])
    names = tuple(task["contenders"])
    plan = Task("all_reduce", shapes, "float32", "sum", 0, names, task["repeats"], task["warmup"])
    meter = Meter(plan, contenders, one_clock=False)
    for shape in shapes:
        size = meter.measure(shape)
        broken = {
            name: row["unsupported"] for name, row in size["contenders"].items() if "unsupported" in row
        }
        if broken:
            raise SystemExit(f"rank {slipstream.rank()}: {broken}")
        rows = {
            name: {"samples": slowest(row["seconds"]), "wrong": row["wrong"]}
            for name, row in size["contenders"].items()
        }
        for name, group in groups.items():
            rows[name]["way"] = group.compiled("all_reduce", shape.nbytes).operation.partition("/")[2]
            rows[name]["unused"] = _unused(group.job)
        if slipstream.rank() == 0:
            print(json.dumps({"bytes": shape.nbytes, "calls": size["calls"], "contenders": rows}), flush=True)
    slipstream.barrier()
    for contender in contenders:
        contender.close()
    for group in groups.values():
        if group.job is not None and group.job is not job.current():
            group.job.close()
    slipstream.shutdown()


if __name__ == "__main__":
    main()
