"""What tells one start of a job from another: a name that the launcher gives to all ranks of a start, and to no other.

A launcher's names count where its own rank and size are those of this process. So a job that somebody makes of several
launches (an ``srun`` for each host, say) has none. Our own launcher needs none: it draws a secret for each start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slipstream.comm.rendezvous.rank_sources import Placement

__all__ = ["Named", "difference", "start_identity"]

_MOST = 100  # characters of a value


class _Launcher(NamedTuple):
    rank: str
    sizes: tuple[str, ...]
    names: tuple[str, ...]
    apart: tuple[str, ...] = ()  # where a name begins so, the launcher's names may differ within a start


_LAUNCHERS = (
    # components of a heterogeneous job have numbers of their own
    _Launcher(
        "SLURM_PROCID",
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
        ("SLURM_HET_", "SLURM_PACK_"),
    ),
    _Launcher(
        "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
    ),
    _Launcher("PMI_RANK", ("PMI_SIZE",), ("PMI_JOBID",)),
    # not TORCHELASTIC_RESTART_COUNT: each agent counts the failures of its own ranks
    _Launcher("RANK", ("WORLD_SIZE",), ("TORCHELASTIC_RUN_ID",)),
)
_NO_NAME = {"TORCHELASTIC_RUN_ID": "none"}  # torchrun's default


class Named(NamedTuple):
    """A value, and the process that has it."""

    value: str
    who: str


def start_identity(placement: Placement, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables and their values; {} if no launcher has named the start."""
    found = {}
    for launcher in _LAUNCHERS:
        size = next((environ[name] for name in launcher.sizes if environ.get(name)), None)
        if (environ.get(launcher.rank), size) != (str(placement.rank), str(placement.size)):
            continue
        if any(name.startswith(launcher.apart) for name in environ) and launcher.apart:
            continue
        for name in launcher.names:
            value = environ.get(name, "")
            if value and value != _NO_NAME.get(name):
                found[name] = value[:_MOST]
    return found


def difference(known: Mapping[str, Named], identity: Mapping[str, str], who: str) -> str:
    """Why the process ``who`` is not of the start that is ``known``, with the cure; "" if nothing says so."""
    differing = {name: value for name, value in identity.items() if known.get(name, (value,))[0] != value}
    if not differing:
        return ""
    other = known[next(iter(differing))].who
    theirs = ", ".join(f"{name}={known[name].value}" for name in differing)
    ours = ", ".join(f"{name}={value}" for name, value in differing.items())
    return (
        f"two starts of a job meet: {other} has {theirs}, and {who} has {ours}. Give each start a meeting point of its "
        "own (MASTER_PORT, SLIPSTREAM_PORT or SLIPSTREAM_RENDEZVOUS). If both are to be one job, unset "
        f"{', '.join(differing)} in its processes"
    )
