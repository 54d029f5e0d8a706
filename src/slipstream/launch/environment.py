"""The variables the ranks get: which of the launcher's travel, and what each rank is told."""

from __future__ import annotations

import re
from collections.abc import Mapping

from slipstream.launch.hosts import Placed

__all__ = ["laid_over", "passed_on", "rank_variables"]

# What belongs to this login, host or an enclosing launcher. On other hosts the login's own values hold.
_OF_A_LOGIN = re.compile(
    r"HOME|USER|LOGNAME|MAIL|SHELL|SHLVL|PWD|OLDPWD|HOSTNAME|TMPDIR|TERM|DISPLAY|LS_COLORS|_|XDG_.*|SSH_.*|DBUS_.*"
    r"|BASH_FUNC_.*|SLURM_.*|OMPI_.*|PMIX_.*|PMI_.*"
)
_OF_A_JOB = re.compile(
    r"RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_.*|OMPI_COMM_WORLD_.*"
    r"|HOROVOD_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|CROSS_RANK|CROSS_SIZE|HOSTNAME)"
    r"|SLIPSTREAM_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|CROSS_RANK|CROSS_SIZE|STORE|RENDEZVOUS|PORT|SECRET|SECRET_FILE)"
)

_OF_REDUCERS = re.compile(r"SLIPSTREAM_REDUCER(S|_SECRET|_SECRET_FILE)")  # whoever gives one gives all


def passed_on(environ: Mapping[str, str], *, remote: bool) -> dict[str, str]:
    """The launcher's variables that the ranks get too."""
    return {
        name: value
        for name, value in environ.items()
        if not _OF_A_JOB.fullmatch(name) and not (remote and _OF_A_LOGIN.fullmatch(name))
    }


def laid_over(below: Mapping[str, str], above: Mapping[str, str]) -> dict[str, str]:
    """``above``, and what it does not replace of ``below``."""
    replaced = any(map(_OF_REDUCERS.fullmatch, above))
    kept = {name: value for name, value in below.items() if not (replaced and _OF_REDUCERS.fullmatch(name))}
    return {**kept, **above}


def rank_variables(placed: Placed, size: int) -> dict[str, str]:
    """What tells a rank its place: our names, those of torch.distributed, and Horovod's."""
    slipstream = {
        "RANK": placed.rank,
        "SIZE": size,
        "LOCAL_RANK": placed.local_rank,
        "LOCAL_SIZE": placed.local_size,
        "CROSS_RANK": placed.cross_rank,
        "CROSS_SIZE": placed.cross_size,
    }
    env = {f"{family}_{name}": str(value) for name, value in slipstream.items() for family in _FAMILIES}
    env |= {"RANK": str(placed.rank), "WORLD_SIZE": str(size)}
    env |= {"LOCAL_RANK": str(placed.local_rank), "LOCAL_WORLD_SIZE": str(placed.local_size)}
    env["HOROVOD_HOSTNAME"] = placed.host
    return env


_FAMILIES = ("SLIPSTREAM", "HOROVOD")
