"""The variables the ranks get: which of the launcher's travel, and what each rank is told."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from slipstream.launch.hosts import Placed

__all__ = ["FORWARDED", "as_horovod", "as_mpi4jax", "for_jax", "laid_over", "passed_on", "rank_variables"]

# What other hosts get of the launcher's variables: settings of libraries that ranks use, and where programs are.
# Everything else stays here, tokens and keys above all; `slipstream run -x NAME` adds what a job needs.
# `*` stands for any end. docs/running.md repeats the list.
FORWARDED = (
    *("SLIPSTREAM_*", "HOROVOD_*", "TORCH_*", "PYTORCH_*"),
    *("OMP_*", "KMP_*", "GOMP_*", "MKL_*", "OPENBLAS_*", "BLIS_*", "NUMEXPR_*", "NUMBA_*", "MALLOC_*"),
    *("NCCL_*", "RCCL_*", "GLOO_*", "UCC_*", "UCX_*", "FI_*"),
    *("CUDA_*", "CUDNN_*", "CUBLAS_*", "NVIDIA_*", "ROCR_*", "HIP_*", "HSA_*"),
    *("TF_*", "XLA_*", "JAX_*", "TRITON_*"),
    *("PATH", "PYTHON*", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"),
    *("LANG", "LANGUAGE", "LC_*", "TZ", "NO_COLOR"),
)
_NEVER = re.compile(r".*(TOKEN|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_KEY).*")  # whatever it begins with
_OF_A_JOB = re.compile(
    r"RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_.*|OMPI_COMM_WORLD_.*"
    r"|HOROVOD_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|CROSS_RANK|CROSS_SIZE|HOSTNAME)"
    r"|SLIPSTREAM_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|CROSS_RANK|CROSS_SIZE|STORE|RENDEZVOUS|PORT|SECRET|SECRET_FILE"
    r"|HOST_NAME|REPORT|MIN_NP|JAX_COORDINATOR)"
)

_OF_REDUCERS = re.compile(r"SLIPSTREAM_REDUCER(S|_SECRET|_SECRET_FILE)")  # whoever gives one gives all


def passed_on(environ: Mapping[str, str], *, remote: bool) -> dict[str, str]:
    """The launcher's variables that the ranks get too: here all but those of a job, on other hosts `FORWARDED`."""
    return {
        name: value
        for name, value in environ.items()
        if not _OF_A_JOB.fullmatch(name) and (not remote or _is_forwarded(name))
    }


def _is_forwarded(name: str) -> bool:
    named = any(name.startswith(one[:-1]) if one.endswith("*") else name == one for one in FORWARDED)
    return named and not _NEVER.fullmatch(name) and name != "SLIPSTREAM_ADDRESS"  # which is of one host


def laid_over(below: Mapping[str, str], above: Mapping[str, str]) -> dict[str, str]:
    """``above``, and what it does not replace of ``below``."""
    replaced = any(map(_OF_REDUCERS.fullmatch, above))
    kept = {name: value for name, value in below.items() if not (replaced and _OF_REDUCERS.fullmatch(name))}
    return {**kept, **above}


def as_horovod(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` in which Python finds the package ``horovod`` of this slipstream before any other."""
    return _on_path(env, "as_horovod")


def as_mpi4jax(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` in which Python finds the packages ``mpi4jax`` and ``mpi4py`` of this slipstream before any other."""
    return _on_path(env, "as_mpi4jax")


def for_jax(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` in which JAX's programs find their place in the job, and slipstream as their MPI.

    A variable that ``env`` has stays, so that the user may choose other collectives or another MPI.
    """
    made = _on_path(env, "as_jax")
    library = _PACKAGE / "libslipstream_mpi.so"
    if made.get(_JAX_COLLECTIVES, "mpi") == "mpi" and library.exists():
        made = {"MPITRAMPOLINE_LIB": str(library), _JAX_COLLECTIVES: "mpi", **made}
    return made


def _on_path(env: Mapping[str, str], package: str) -> dict[str, str]:
    """``env`` in which Python looks into the folder ``on_path`` of one of our packages first."""
    ours = str(_PACKAGE / package / "on_path")
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, [ours, env.get("PYTHONPATH", "")]))}


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
_PACKAGE = Path(__file__).resolve().parents[1]
_JAX_COLLECTIVES = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"
