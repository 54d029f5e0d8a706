"""What becomes of ``HOROVOD_*`` variables: the setting that each stands for, or why it has no meaning here.

A setting of ours, if it is given, comes before Horovod's. Imported only where such a variable is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["KNOBS", "OURS", "THEIRS", "Knob", "Told", "knob_of", "told", "values"]

THEIRS, OURS = "HOROVOD_", "SLIPSTREAM_"
_MOST_FUSED = 1 << 30
_LEVELS = {"trace": "debug", "debug": "debug", "info": "info"} | dict.fromkeys(
    ("warning", "error", "fatal"), "warning"
)


@dataclass(frozen=True)
class Knob:
    """One variable: ``field`` is the setting that it becomes, ``value`` what its text becomes there.

    ``value(text, environ)`` returns None if that text changes nothing, and raises ValueError if it is malformed.
    Without a field ``why`` says why it has no meaning; ``always``: what it asks for is always so.
    """

    field: str = ""
    value: Callable[[str, Mapping[str, str]], str | None] = lambda text, _: text
    why: str = ""
    always: bool = False


class Told(NamedTuple):
    """What to say of a variable; ``warns``: its user has to know, as something is not as it was."""

    warns: bool
    text: str


def _number(text: str) -> int:
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        raise ValueError("expected a number") from None


def _switch(on: str, off: str | None) -> Callable[[str, Mapping[str, str]], str | None]:
    return lambda text, _: on if _number(text) > 0 else off


def _fused(text: str, _: Mapping[str, str]) -> str:
    return str(max(0, min(_number(text), _MOST_FUSED)))


def _above_zero(text: str, _: Mapping[str, str]) -> str | None:
    return text if _number(text) > 0 else None


def _stalled(text: str, environ: Mapping[str, str]) -> str | None:
    checks = environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") in ("", "0")
    return _above_zero(text, environ) if checks else None


def _level(text: str, _: Mapping[str, str]) -> str:
    if text.lower() not in _LEVELS:
        raise ValueError(f"expected one of {', '.join(_LEVELS)}")
    return _LEVELS[text.lower()]


def _timeline(text: str, _: Mapping[str, str]) -> str | None:
    return None if text == "DYNAMIC" else text


def _core(text: str, environ: Mapping[str, str]) -> str | None:
    """The one of this rank: Horovod takes one for each rank of the host."""
    cores, rank = text.split(","), environ.get("SLIPSTREAM_LOCAL_RANK", "")
    return cores[int(rank)].strip() if rank.isdigit() and int(rank) < len(cores) else None


_NO_CYCLES = "there are no cycles: an operation starts as soon as all ranks have called it"
_TUNING = "tuning ends when its measurements say enough"
_NO_MPI = "slipstream uses no MPI"
_NO_STREAMS = "slipstream uses no NCCL"
_ENGINE = "slipstream has one engine, its own"
_STALLS = "a warning always names the ranks that an operation waits for; SLIPSTREAM_TIMEOUT ends the wait"
_STALL_TIME = (
    "the warning that names the ranks that an operation waits for comes after 10 s, always; "
    "SLIPSTREAM_TIMEOUT ends the wait"
)
_BUILD = "it is for the build of Horovod"

KNOBS: dict[str, Knob] = {
    "FUSION_THRESHOLD": Knob("fusion_threshold", _fused),
    "CYCLE_TIME": Knob(why=_NO_CYCLES),
    "CACHE_CAPACITY": Knob(why="the order of names is remembered without a limit"),
    "AUTOTUNE": Knob("autotune", _switch("on", "off")),
    "AUTOTUNE_LOG": Knob("autotune_log"),
    "AUTOTUNE_WARMUP_SAMPLES": Knob(why=_TUNING),
    "AUTOTUNE_STEPS_PER_SAMPLE": Knob(why=_TUNING),
    "AUTOTUNE_BAYES_OPT_MAX_SAMPLES": Knob(why=_TUNING),
    "AUTOTUNE_GAUSSIAN_PROCESS_NOISE": Knob(why=_TUNING),
    "HIERARCHICAL_ALLREDUCE": Knob("hierarchy", _switch("on", "off")),
    "HIERARCHICAL_ALLGATHER": Knob(why="slipstream chooses the algorithm of each all-gather"),
    "TORUS_ALLREDUCE": Knob("hierarchy", _switch("on", None)),
    "STALL_CHECK_DISABLE": Knob(why=_STALLS),
    "STALL_CHECK_TIME_SECONDS": Knob(why=_STALL_TIME),
    "STALL_SHUTDOWN_TIME_SECONDS": Knob("timeout", _stalled),
    "TIMELINE": Knob("timeline", _timeline),
    "TIMELINE_MARK_CYCLES": Knob(why="a timeline always marks the rounds of the negotiation", always=True),
    "LOG_LEVEL": Knob("log", _level),
    "LOG_HIDE_TIME": Knob(why="messages have no time; slipstream run --timestamps adds it to all lines"),
    "GLOO_TIMEOUT_SECONDS": Knob(
        why="SLIPSTREAM_TIMEOUT limits operations, with the wait for other ranks; SLIPSTREAM_HEARTBEAT finds lost ranks"
    ),
    "GLOO_IFACE": Knob("interface"),
    "START_TIMEOUT": Knob("start_timeout", _above_zero),
    "ELASTIC_TIMEOUT": Knob(why="no rank waits for new hosts: those that are left go on at once"),
    "DYNAMIC_PROCESS_SETS": Knob(why="process sets can always be added and removed", always=True),
    "DISABLE_GROUP_FUSION": Knob(why="SLIPSTREAM_FUSION_THRESHOLD alone says what travels together"),
    "ENABLE_ASYNC_COMPLETION": Knob(why=_NO_STREAMS),
    "BATCH_D2D_MEMCOPIES": Knob(why=_NO_STREAMS),
    "NUM_NCCL_STREAMS": Knob(why=_NO_STREAMS),
    "MPI_THREADS_DISABLE": Knob(why=_NO_MPI),
    "ADASUM_MPI_CHUNK_SIZE": Knob(why=_NO_MPI),
    "THREAD_AFFINITY": Knob("affinity", _core),
    "CONTROLLER": Knob(why=_ENGINE),
    "CPU_OPERATIONS": Knob(why=_ENGINE),
}

# What images of containers set when they build Horovod: nobody who runs a job means anything by these.
_OF_THE_BUILD = (
    "WITH_",
    "WITHOUT_",
    "BUILD_",
    "GPU_",
    "CUDA_",
    "NCCL_",
    "ROCM_",
    "MPICXX_",
    "CCL_",
    "GPU",
    "VERSION",
)


def knob_of(variable: str) -> Knob | None:
    """What is known of the whole name of a variable; None if Horovod has no such variable that we know."""
    name = variable.removeprefix(THEIRS)
    if name.startswith(_OF_THE_BUILD):
        return Knob(why=_BUILD, always=True)
    return KNOBS.get(name)


def values(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Variable, field and text of each setting that Horovod's variables stand for; the first of a field counts.

    Raises ValueError naming a variable that is malformed.
    """
    seen = set()
    for name, knob in KNOBS.items():
        text = environ.get(THEIRS + name)
        if not text or not knob.field or knob.field in seen or OURS + knob.field.upper() in environ:
            continue
        value = _value(THEIRS + name, knob, environ)
        if value is not None:
            seen.add(knob.field)
            yield THEIRS + name, knob.field, value


def _value(variable: str, knob: Knob, environ: Mapping[str, str]) -> str | None:
    try:
        return knob.value(environ[variable], environ)
    except ValueError as error:
        raise ValueError(f"{variable}: {error}, got {environ[variable]!r:.80}") from None


def told(variable: str, environ: Mapping[str, str]) -> Told:
    """One line on what has become of a variable that is set."""
    knob, given = knob_of(variable), f"{variable}={environ[variable]:.200}"
    if knob is None:
        return Told(True, f"{given} is ignored: slipstream knows no such variable")
    if not knob.field:
        text = f"{given}: {knob.why}" if knob.always else f"{given} has no meaning here: {knob.why}"
        return Told(not knob.always and environ[variable] not in ("", "0"), text)
    ours = OURS + knob.field.upper()
    value = _value(variable, knob, environ) if environ[variable] else None
    if value is None:
        return Told(False, f"{given} changes nothing")
    if environ.get(ours, value) != value:
        return Told(True, f"{given} is not used: {ours}={environ[ours]} is set")
    return Told(True, f"{given} became {ours}={value}")
