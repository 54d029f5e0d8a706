"""What `libslipstream_mpi.so` asks Python: to join the job, and for the engine's functions (native/mpi_trampoline)."""

from slipstream.faces.mpi_trampoline.answers import (
    gathering_seconds,
    group_made_now,
    group_sizes,
    operation_seconds,
    parting_seconds,
    process_number,
    start,
    watch_jax,
)

__all__ = [
    "gathering_seconds",
    "group_made_now",
    "group_sizes",
    "operation_seconds",
    "parting_seconds",
    "process_number",
    "start",
    "watch_jax",
]
