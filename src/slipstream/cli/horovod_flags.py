"""The options of ``horovodrun``, and what each becomes of `slipstream run`.

Those that set a variable in Horovod set it here, too: `base.horovod_knobs` says what becomes of that.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.base.horovod_knobs import KNOBS, OURS, THEIRS

__all__ = ["DISCOVERY", "FLAGS", "SECTIONS", "Flag", "meaning"]


@dataclass(frozen=True)
class Flag:
    """One option. ``names``: all of them, with spaces between; ``words``: how many words follow it.

    ``becomes``: words of `slipstream run`, in which {} is what was given. Else ``ignored`` says why it has no meaning;
    "" of both: there is nothing to say. ``refused``: what to use, as the job would be another one without it.
    """

    names: str
    words: int = 1
    becomes: tuple[str, ...] = ()
    ignored: str = ""
    refused: str = ""


def _knob(variable: str, text: str = "{}") -> tuple[str, ...]:
    return "-e", f"HOROVOD_{variable}={text}"


def _switch(name: str, variable: str, on: str = "1", off: str = "0") -> list[Flag]:
    """``--name`` and ``--no-name``."""
    return [
        Flag(f"--{name}", 0, _knob(variable, on)),
        Flag(f"--no-{name}", 0, _knob(variable, off)),
    ]


_NO_MPI = "slipstream uses no MPI"
_NO_TIME = "messages have no time; --prefix-output-with-timestamp adds it to all lines"

FLAGS: tuple[Flag, ...] = (
    Flag("-np --num-proc", 1, ("-np", "{}")),
    Flag("--disable-cache", 0, ignored="no result of a check is remembered"),
    Flag("--start-timeout", 1, ("--start-timeout", "{}")),
    Flag("--network-interface --network-interfaces", 1, ("--interface", "{}")),
    Flag("--output-filename", 1, ("--output-dir", "{}")),
    Flag("--verbose", 0, ("-v",)),
    Flag("-p --ssh-port", 1, ("-p", "{}")),
    Flag("-i --ssh-identity-file", 1, ("-i", "{}")),
    Flag("--fusion-threshold-mb", 1, ("--fusion-threshold", "{}MiB")),
    Flag("--cycle-time-ms", 1, _knob("CYCLE_TIME")),
    Flag("--cache-capacity", 1, _knob("CACHE_CAPACITY")),
    *_switch("hierarchical-allreduce", "HIERARCHICAL_ALLREDUCE"),
    *_switch("hierarchical-allgather", "HIERARCHICAL_ALLGATHER"),
    *_switch("torus-allreduce", "TORUS_ALLREDUCE"),
    *_switch("autotune", "AUTOTUNE"),
    Flag("--autotune-log-file", 1, ("--autotune-log", "{}")),
    Flag("--autotune-warmup-samples", 1, _knob("AUTOTUNE_WARMUP_SAMPLES")),
    Flag("--autotune-steps-per-sample", 1, _knob("AUTOTUNE_STEPS_PER_SAMPLE")),
    Flag("--autotune-bayes-opt-max-samples", 1, _knob("AUTOTUNE_BAYES_OPT_MAX_SAMPLES")),
    Flag("--autotune-gaussian-process-noise", 1, _knob("AUTOTUNE_GAUSSIAN_PROCESS_NOISE")),
    Flag("--min-np --min-num-proc", 1, ("--min-np", "{}")),
    Flag("--max-np --max-num-proc", 1, ignored="a job has -np ranks at most: no rank joins it later"),
    Flag("--slots-per-host", 1),  # of hosts that a script discovers
    Flag("--elastic-timeout", 1, _knob("ELASTIC_TIMEOUT")),
    Flag("--reset-limit", 1, ("-e", f"{OURS}RESET_LIMIT={{}}")),
    Flag("--blacklist-cooldown-range", 2, ignored="no host comes back into a job"),
    Flag("--timeline-filename", 1, ("--timeline", "{}")),
    *_switch("timeline-mark-cycles", "TIMELINE_MARK_CYCLES"),
    *_switch("stall-check", "STALL_CHECK_DISABLE", "0", "1"),
    Flag("--stall-check-warning-time-seconds", 1, _knob("STALL_CHECK_TIME_SECONDS")),
    Flag("--stall-check-shutdown-time-seconds", 1, _knob("STALL_SHUTDOWN_TIME_SECONDS")),
    *_switch("mpi-threads-disable", "MPI_THREADS_DISABLE"),
    Flag("--mpi-args", 1, ignored=f"{_NO_MPI}; variables of the ranks are set by slipstream run -x"),
    Flag("--tcp", 0),
    Flag("--binding-args", 1, ignored=f"{_NO_MPI}; SLIPSTREAM_AFFINITY binds its threads to CPUs"),
    Flag("--num-nccl-streams", 1, _knob("NUM_NCCL_STREAMS")),
    Flag("--thread-affinity", 1, _knob("THREAD_AFFINITY")),
    Flag("--gloo-timeout-seconds", 1, _knob("GLOO_TIMEOUT_SECONDS")),
    Flag("--log-level", 1, _knob("LOG_LEVEL")),
    Flag("--log-with-timestamp --no-log-hide-timestamp", 0, ignored=_NO_TIME),
    Flag("--log-without-timestamp --log-hide-timestamp", 0),
    Flag("-prefix-timestamp --prefix-output-with-timestamp", 0, ("--timestamps",)),
    Flag("-H --hosts", 1, ("-H", "{}")),
    Flag("-hostfile --hostfile", 1, ("--hostfile", "{}")),
    Flag("--host-discovery-script", 1, ("-H", "{}")),  # the hosts that it prints
    Flag("--gloo", 0),
    Flag("--mpi", 0, ignored=f"{_NO_MPI}; without mpirun, its own launcher starts the ranks"),
    Flag("--jsrun", 0, refused="name the hosts: -H HOST:SLOTS,... or --hostfile FILE"),
)


# What asks a script for hosts, and what it means here.
DISCOVERY = {
    "--slots-per-host": "of hosts that --host-discovery-script names without slots",
    "--host-discovery-script": "-H with the hosts that it prints; it is asked once, at the start: no host joins later",
}


def meaning(flag: Flag) -> str:
    """What it is to `slipstream run`, in a few words: its option or variable there, or why there is none."""
    if flag.names in DISCOVERY:
        return DISCOVERY[flag.names]
    variable, _, text = flag.becomes[-1].partition("=") if flag.becomes else ("", "", "")
    if variable.startswith(OURS):
        return f"sets {variable}=..."
    if variable.startswith(THEIRS):
        knob = KNOBS[variable.removeprefix(THEIRS)]
        if not knob.field:
            return f"{'always so' if knob.always else 'no meaning'}: {knob.why}"
        value = "..." if text == "{}" else knob.value(text, {})
        return "changes nothing" if value is None else f"sets {OURS}{knob.field.upper()}={value}"
    if flag.becomes:
        return " ".join(flag.becomes).format("VALUE")
    if flag.refused:
        return f"refused: {flag.refused}"
    return f"no meaning: {flag.ignored}" if flag.ignored else "always so: leave it out"


# Of the file of --config-file: what stands before the names of a section's options.
SECTIONS = {
    "params": "",
    "library_options": "",
    "autotune": "autotune-",
    "timeline": "timeline-",
    "stall_check": "stall-check-",
    "logging": "log-",
}
