"""The end of JAX's processes in a job that goes on without the ranks that it loses (`slipstream run --min-np`).

JAX's processes leave together: each waits at its end for all others, also for one that was killed. Only when JAX has
missed that one's heartbeat for 100 seconds it ends those that are left, busy or not. In such a job they get JAX's
recoverability here, which does neither. But with it the process that serves the others does not wait for them, and
JAX ends those that it leaves behind. So it waits here for those that live.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from typing import Any

from slipstream.as_jax.conditions import carries_collectives, has_only_cpus

__all__ = ["add"]

_RECOVERABILITY = "jax_enable_recoverability"
_HERE = "slipstream/ends/"  # and the number of a process that has come to its end; the value is its rank
_MOST_SECONDS = 300.0  # as JAX waits at its end
_ANSWER_SECONDS = 10.0  # in which a rank that lives answers
_LOOK_SECONDS = 0.1


def add() -> None:
    """Makes JAX recoverable, if the job loses ranks and goes on; the user's own choice stays.

    What this replaces is no public interface. If it is not what it was, nothing happens.
    """
    state: Any = getattr(importlib.import_module("jax._src.distributed"), "State", None)
    config: Any = importlib.import_module("jax._src.config").config
    shutdown: Any = getattr(state, "shutdown", None)
    known = shutdown is not None and hasattr(config, _RECOVERABILITY)
    if not (known and _loses_ranks(os.environ) and has_only_cpus(os.environ)):
        return
    config.update(_RECOVERABILITY, True)
    # Python calls functions of `atexit` in reverse order. JAX registers its end later than that module, so it runs
    # before this process leaves the job.
    importlib.import_module("slipstream.comm.membership.job")

    def shut_down(self: Any) -> None:
        try:
            if self.client is not None:
                _part(self)
        finally:
            shutdown(self)

    state.shutdown = shut_down


def _loses_ranks(env: Mapping[str, str]) -> bool:
    """Whether slipstream carries JAX's collectives, so that no survivor waits in one, in a job that goes on."""
    size = int(env.get("SLIPSTREAM_SIZE", 1))
    return (
        carries_collectives(env)
        and _RECOVERABILITY.upper() not in env
        and int(env.get("SLIPSTREAM_MIN_NP", size)) < size
    )


def _part(state: Any) -> None:
    """Tells the process that serves the others that this one ends; as that one, waits until all that live have left."""
    if state.service is None:
        state.client.key_value_set(f"{_HERE}{state.process_id}", os.environ["SLIPSTREAM_RANK"], True)
        return
    job = _job()
    # The ranks of a job that has shrunk have other numbers than those that they tell.
    has_shrunk = job is not None and job.size < _number("SIZE")
    size = job.size if has_shrunk else state.num_processes
    until = time.monotonic() + _MOST_SECONDS
    while True:
        alive = _alive(job)
        told = state.client.key_value_dir_get(_HERE)  # after that: one that has told it may be gone
        here = {int(key.rpartition("/")[2]): int(rank) for key, rank in told}
        if not has_shrunk:
            alive -= set(here.values())
        if not alive or len(here) + 1 >= size or time.monotonic() > until:
            break
        time.sleep(_LOOK_SECONDS)
    if here:
        state.client.get_live_nodes([state.process_id, *here])  # returns when they have left


def _job() -> Any:
    """That of this process, which is told if an exception ends the process; None if it is in none."""
    jobs = importlib.import_module("slipstream.comm.membership.job")
    failures = importlib.import_module("slipstream.comm.membership.failures")
    try:
        job = jobs.current_or_only()
    except failures.errors.SlipstreamError:
        return None
    if words := failures.last_words():  # else others would wait for this process, and it for them
        job.session.abandon(words)
    return job


def _alive(job: Any) -> set[int]:
    """The other ranks that live; all of them where nobody can tell."""
    mine, size = (_number("RANK"), _number("SIZE")) if job is None else (job.rank, job.size)
    others = [rank for rank in range(size) if rank != mine]
    return set(others if job is None else job.session.probe(others, _ANSWER_SECONDS))


def _number(name: str) -> int:
    return int(os.environ[f"SLIPSTREAM_{name}"])
