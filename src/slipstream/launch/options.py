"""What a job is to be: the choices of a user, which `launcher.run_job` carries out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from slipstream.launch.hosts import Placed

__all__ = ["JobOptions"]


@dataclass(frozen=True)
class JobOptions:
    """How to run a job; ``placed`` holds its ranks in order, times are in seconds.

    ``reducers``: host and port of those that run already. ``reducer_hosts``: where to start one for this job.
    ``horovod``, ``mpi4jax``: the ranks find slipstream by the name of Horovod, of mpi4jax and mpi4py.
    ``min_np``: the job goes on while as many ranks are left (None: it ends with the first that fails).
    """

    argv: list[str]
    placed: list[Placed]
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    output_dir: Path | None = None
    start_timeout: float = 60.0
    min_np: int | None = None
    interface: str | None = None
    prefix: bool = True
    timestamps: bool = False
    verbose: bool = False
    ssh_command: str = "ssh"
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    reducers: tuple[tuple[str, int], ...] = ()
    reducer_hosts: tuple[str, ...] = ()
    horovod: bool = False
    mpi4jax: bool = False
