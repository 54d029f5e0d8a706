"""Which rank of how many this process is: pure functions of the environment a launcher left."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from slipstream.base.settings import Settings

__all__ = ["Placement", "expand_nodelist", "find_placement", "slurm_port"]


class Placement(NamedTuple):
    """Rank and size, and the place on the host where the environment tells it. ``source`` names who told."""

    source: str
    rank: int
    size: int
    local_rank: int | None = None
    local_size: int | None = None
    cross_rank: int | None = None
    cross_size: int | None = None


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if text is None or text == "":
        return None
    if not re.fullmatch(r"\d{1,9}", text):
        raise ValueError(f"{name}: expected a whole number, got {text!r:.80}")
    return int(text)


def _placement(environ: Mapping[str, str], source: str, *names: str) -> Placement | None:
    """``names``: the variables of rank, size, local rank, local size."""
    rank, size, local_rank, local_size = (_number(environ, name) for name in names)
    if rank is None and size is None:
        return None
    if rank is None or size is None:
        missing = names[0] if rank is None else names[1]
        raise ValueError(f"{missing}: not set, but {names[1] if rank is None else names[0]} is")
    if rank >= size:
        raise ValueError(f"{names[0]}: {rank} is not below {names[1]}={size}")
    if local_rank is None or local_size is None or local_rank >= local_size:
        local_rank = local_size = None
    return Placement(source, rank, size, local_rank, local_size)


def find_placement(
    settings: Settings, environ: Mapping[str, str], rank: int | None = None, size: int | None = None
) -> Placement:
    """The first that knows: arguments, SLIPSTREAM_*, RANK/WORLD_SIZE, Open MPI, Slurm; else rank 0 of 1.

    The environment adds to arguments what it knows of the same rank. An environment that describes another rank, or
    none completely, is not asked: a caller that gives its rank may use RANK or WORLD_SIZE as it likes.

    Raises ValueError naming the variable that is malformed or missing.
    """
    if (rank is None) != (size is None):
        raise ValueError("rank and size belong together")
    if rank is not None and size is not None:
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} is not in 0..{size - 1}")
        arguments = Placement("arguments", rank, size)
        try:
            known = find_placement(settings, environ)
        except ValueError:
            return arguments
        return known if (known.rank, known.size) == (rank, size) else arguments
    if settings.rank is not None and settings.size is not None:
        s = settings
        return Placement(
            "slipstream", settings.rank, settings.size, s.local_rank, s.local_size, s.cross_rank, s.cross_size
        )
    mpi = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    found = _placement(environ, "env", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    found = found or _placement(environ, "openmpi", *mpi)
    if (
        found is None and "SLURM_STEP_NODELIST" in environ
    ):  # a step, not the batch script, which is one process
        size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
        found = _placement(environ, "slurm", "SLURM_PROCID", size_name, "SLURM_LOCALID", "")
    return found or Placement("none", 0, 1)


def expand_nodelist(text: str) -> list[str]:
    """The hosts of a Slurm list: ``gpu[01-02,7],login`` is gpu01 gpu02 gpu7 login; raises ValueError."""
    if not re.fullmatch(r"(?:[\w.-]+|\[[\d,-]+\]|,)+", text):
        raise ValueError(f"SLURM_STEP_NODELIST: cannot read {text!r:.80}")
    hosts: list[str] = []
    for entry in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        names = [""]
        for plain, inside in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", entry):
            parts = [plain] if plain else [n for span in inside.split(",") for n in _span(span)]
            names = [name + part for name in names for part in parts]
        hosts += names
    return hosts


def _span(span: str) -> list[str]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", span)
    if match is None or int(match[2] or match[1]) - int(match[1]) not in range(1 << 20):
        raise ValueError(f"SLURM_STEP_NODELIST: cannot read the range {span!r:.80}")
    first, last = match[1], match[2] or match[1]
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def slurm_port(environ: Mapping[str, str]) -> int:
    """A port all tasks of a Slurm step derive alike: 10000..29999, below the ports that systems hand out."""
    job, step = _number(environ, "SLURM_JOB_ID") or 0, _number(environ, "SLURM_STEP_ID") or 0
    return 10000 + (job * 31 + step) % 20000
