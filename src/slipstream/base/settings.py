"""Settings from ``SLIPSTREAM_*`` environment variables: read once, parsed strictly.

Every field of `Settings` belongs to one variable and is documented beside it. A variable that is malformed or
that slipstream does not know is an error naming the variable: a typing mistake never goes unnoticed.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.base.cpus import format_cpus, parse_cpus
from slipstream.base.dtypes import WIRE_NAMES
from slipstream.base.misspelt import did_you_mean
from slipstream.base.units import TIME_UNITS, parse_duration, parse_rate, parse_size

__all__ = [
    "PREFIX",
    "REDUCER_PORT",
    "REPLACEABLE",
    "Settings",
    "of_horovod",
    "parse_address",
    "parse_reducers",
    "parse_secret",
    "variables",
]

PREFIX = "SLIPSTREAM_"
REDUCER_PORT = 29700
REPLACEABLE = ("gloo", "mpi", "nccl", "ucc")  # backends that PyTorch itself brings


def parse_address(text: str) -> tuple[str, int]:
    """Splits ``host:port`` or ``[v6]:port``; raises ValueError when it is neither."""
    match = re.fullmatch(r"\[([0-9A-Fa-f:.%\w]+)\]:(\d{1,5})|([^:\s\[\]]+):(\d{1,5})", text)
    if match is None:
        raise ValueError("expected host:port or [ipv6]:port")
    host, port = match[1] or match[3], int(match[2] or match[4])
    if not 0 < port < 65536:
        raise ValueError("the port must be 1..65535")
    return host, port


def parse_addresses(text: str) -> tuple[str, ...]:
    """Splits numeric addresses with commas between; raises ValueError for anything else."""
    import ipaddress  # few processes are given any

    try:
        return tuple(str(ipaddress.ip_address(part)) for part in text.split(","))
    except ValueError:
        raise ValueError("expected numeric addresses, with commas between") from None


def parse_reducers(text: str) -> tuple[tuple[str, int], ...]:
    """Splits ``host[:port],...``; raises ValueError for anything else, or more than 32."""
    found = []
    for part in text.split(","):
        if re.fullmatch(r"[^:\s\[\]]+|\[[0-9A-Fa-f:.]+\]", part):
            found.append((part.strip("[]"), REDUCER_PORT))
        else:
            found.append(parse_address(part))
    if len(found) > 32 or len(set(found)) < len(found):
        raise ValueError("expected at most 32 reducers, each once")
    return tuple(found)


def parse_secret(text: str) -> bytes:
    """The key that 32 or more hexadecimal digits stand for; raises ValueError without repeating the text."""
    if not re.fullmatch(r"(?:[0-9A-Fa-f]{2}){16,512}", text):
        raise ValueError("expected an even number of hexadecimal digits, 32 or more")
    return bytes.fromhex(text)


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or not low <= int(text) <= high:
            raise ValueError(f"expected a whole number from {low} to {high}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    try:
        value = parse_duration(text, bare=True)
    except ValueError:
        value = 0
    if not value:
        raise ValueError(
            f"expected a positive number of seconds, or a time with {TIME_UNITS}, such as 500ms, 60s or 5m"
        )
    return value


def _text(text: str) -> str:
    if not text or len(text) > 4096 or not text.isprintable():
        raise ValueError("expected printable text of 1 to 4096 characters")
    return text


def _malformed(variable: str, error: ValueError, text: str | None) -> ValueError:
    """What is said of a value that ``error`` refuses; without ``text`` the value is secret. A guess comes last."""
    expected, *guess = str(error).partition("; did you mean")
    got = "" if text is None else f", got {text!r:.80}"
    return ValueError(f"{variable}: {expected}{got}{''.join(guess)}")


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}{did_you_mean(text, choices)}")
        return text

    return parse


def _some_of(*choices: str) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if not set(names) <= set(choices) or len(set(names)) < len(names):
            hint = "".join(did_you_mean(name, choices) for name in names if name not in choices)
            raise ValueError(f"expected one or more of {', '.join(choices)}, with commas between{hint}")
        return names

    return parse


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("expected 0 or 1")
    return text == "1"


def _affinity(text: str) -> str:
    if text in ("none", "auto"):
        return text
    try:
        return format_cpus(parse_cpus(text))
    except ValueError as error:
        raise ValueError(f"{error}; or none, or auto") from None


def _zero_copy(text: str) -> str | int:
    if text in ("auto", "off"):
        return text
    try:
        size = parse_size(text)
    except ValueError:
        size = 0
    if not 1 << 12 <= size <= 1 << 30:
        raise ValueError("expected auto, off or a size from 4KiB to 1GiB")
    return size


def _bytes(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError:
        size = -1
    if not 0 <= size <= 1 << 30:
        raise ValueError("expected a size from 0 to 1GiB, such as 1MiB")
    return size


def _lanes(text: str) -> str | int:
    if text == "auto":
        return text
    try:
        return _whole(1, 64)(text)
    except ValueError as error:
        raise ValueError(f"{error}, or auto") from None


def _numeric_address(text: str) -> str:
    import ipaddress  # few jobs name one

    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError("expected a numeric address, such as 127.0.0.1 or 0.0.0.0") from None


def _summary(text: str) -> str:
    if text not in ("0", "1") and not text.endswith(".json"):
        raise ValueError("expected 0, 1 or a file whose name ends in .json (put -- before the command)")
    return text


def _rendezvous(text: str) -> str:
    if not re.fullmatch(r"file://(/[^\0]+)", text):
        raise ValueError("expected file:///absolute/path")
    return text[len("file://") :]


def _setting(parse: Callable[[str], Any], default: Any, doc: str, *, show: bool = True) -> Any:
    return dataclasses.field(default=default, repr=show, metadata={"parse": parse, "doc": doc})


# What Horovod's launcher, and ours, tell each rank: they set nothing.
_PLACES = re.compile(
    r"HOROVOD_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|CROSS_RANK|CROSS_SIZE|HOSTNAME|GLOO_RENDEZVOUS_ADDR"
    r"|GLOO_RENDEZVOUS_PORT|SECRET_KEY|ELASTIC)"
)

_MAX_RANKS = 1 << 20
_rank = _whole(0, _MAX_RANKS - 1)
_size = _whole(1, _MAX_RANKS)


@dataclass(frozen=True)
class Settings:
    """Everything a process is told from outside. Field ``x`` is read from ``SLIPSTREAM_X``."""

    rank: int | None = _setting(_rank, None, "number of this process in the job, from 0")
    size: int | None = _setting(_size, None, "number of processes in the job")
    local_rank: int | None = _setting(_rank, None, "number of this process on its host")
    local_size: int | None = _setting(_size, None, "number of processes of the job on this host")
    cross_rank: int | None = _setting(_rank, None, "number of this host among those with this local rank")
    cross_size: int | None = _setting(_size, None, "number of hosts with this local rank")
    store: tuple[str, int] | None = _setting(parse_address, None, "host:port of the launcher's store")
    rendezvous: str | None = _setting(_rendezvous, None, "file:///path that tells the ranks where they meet")
    port: int | None = _setting(_whole(1, 65535), None, "port of the store rank 0 hosts without a launcher")
    secret: bytes | None = _setting(parse_secret, None, "the job's secret, 32 or more hex digits", show=False)
    secret_file: str | None = _setting(_text, None, "a file of mode 0600 that holds the secret")
    job: str = _setting(_text, "job", "name of the job")
    interface: str | None = _setting(_text, None, "interfaces (names or addresses, with commas) to use")
    address: tuple[str, ...] = _setting(
        parse_addresses, (), "addresses at which other hosts reach this one, if they are not its own (NAT)"
    )
    heartbeat: float = _setting(
        _seconds, 10.0, "seconds that an outage or a stop of a peer may last; 2 s later it counts as lost"
    )
    timeout: float = _setting(_seconds, 1800.0, "seconds an operation may take")
    start_timeout: float = _setting(_seconds, 60.0, "seconds in which all ranks must have come")
    reset_limit: int = _setting(
        _whole(0, 1_000_000), 100, "how often training under hvd.elastic.run may go back to its last commit"
    )
    fusion_threshold: int = _setting(
        _bytes,
        1 << 20,
        "bytes of the buffers in which small sums that have names travel together; 0: they do not",
    )
    lanes: str | int = _setting(
        _lanes,
        "auto",
        "TCP connections for bulk data between two ranks, 1 to 64; one more carries control messages. "
        "auto: 2, and 16 between hosts where these carry more",
    )
    dealing: str = _setting(
        _one_of("pull", "round_robin"),
        "pull",
        "how segments get to lanes; round_robin is for comparison alone",
    )
    zero_copy: str | int = _setting(
        _zero_copy,
        "auto",
        "auto: sends to other hosts are not copied where the kernel can and that is cheaper; "
        "a size: those of so many bytes and more; off",
    )
    single_copy: str = _setting(
        _one_of("auto", "on", "off"),
        "auto",
        "whether ranks of one host read large data in each other's private memory, if the kernel allows it: auto, "
        "where that is cheaper than to copy it twice, as measured when ranks meet; on; off",
    )
    checksum: str = _setting(
        _one_of("auto", "on", "off"),
        "auto",
        "checksums of what TCP connections carry: auto, between hosts alone; on, within a host too; off",
    )
    wire: str = _setting(
        _one_of(*WIRE_NAMES),
        "exact",
        "what large float32 tensors travel as between hosts when torch.distributed or the Horovod API sums or averages "
        "them; on all ranks",
    )
    wire_gather: bool = _setting(
        _switch,
        False,
        "1: float32 tensors that torch.distributed moves by all_gather, if they are large, or by all_to_all travel so, "
        "too; on all ranks",
    )
    hierarchy: str = _setting(
        _one_of("auto", "on", "off"),
        "auto",
        "whether an all_reduce of ranks that share hosts sums within each host first: auto, where that is quicker; "
        "on (then Adasum averages the ranks of each host); off; on all ranks",
    )
    tensorflow_graphs: str = _setting(
        _one_of("native", "negotiated"),
        "native",
        "how common operations run in a tf.function: native, as operations of TensorFlow's own that need no Python; "
        "negotiated, through Python; on all ranks",
    )
    autotune: str = _setting(
        _one_of("off", "auto", "on"),
        "off",
        "whether a job tunes all-reduces between hosts in its first steps: auto, what leaves results as they are "
        "(lanes, chunks); on, the algorithm too, which changes the order of additions; on all ranks",
    )
    autotune_log: str | None = _setting(
        _text, None, "file to which rank 0 adds a line for each setting that is tried"
    )
    tuning_cache: str | None = _setting(
        _text,
        None,
        "file in which rank 0 remembers what tuning has chosen, or off; without it one of the user's cache",
    )
    encrypt: bool = _setting(
        _switch,
        False,
        "1: all TCP connections are encrypted (AES-GCM, keys from the secret); on all ranks, or none",
    )
    congestion: str = _setting(
        lambda text: "" if text == "auto" else _text(text),
        "",
        "congestion control of slipstream's connections; auto: the kernel's, but cubic instead of bbr",
    )
    dscp: int = _setting(
        _whole(0, 63), 0, "DSCP class of the packets between ranks, such as 34 for AF41; 0: the system's"
    )
    threads: int = _setting(_whole(0, 16), 0, "threads that share the copying of the lanes with the engine")
    affinity: str = _setting(
        _affinity, "none", "CPUs for slipstream's threads (0-3,8), auto (near the network interface) or none"
    )
    reducers: tuple[tuple[str, int], ...] = _setting(
        parse_reducers, (), "host[:port] of reducers, with commas between, that sum gradients for this job"
    )
    reducer_secret: bytes | None = _setting(
        parse_secret, None, "the reducers' secret, if it is not the job's", show=False
    )
    reducer_secret_file: str | None = _setting(_text, None, "a file of mode 0600 that holds it")
    reducer_heartbeat: float = _setting(
        _seconds, 1.0, "seconds of silence after which a reducer counts as lost"
    )
    cpu: str | None = _setting(
        _one_of("baseline", "avx2", "avx512"), None, "the most that the kernels may use of the processor"
    )
    transport: str = _setting(_one_of("auto", "tcp", "shm"), "auto", "auto, tcp or shm")
    board: str = _setting(
        _one_of("on", "off"),
        "on",
        "whether small blocking operations within a host go over shared memory, without messages",
    )
    host_id: str | None = _setting(_text, None, "overrides what tells hosts apart")
    hostfile: str | None = _setting(
        _text, None, "file of hosts for `slipstream run` without -H or --hostfile"
    )
    ssh_command: str = _setting(_text, "ssh", "command by which `slipstream run` reaches other hosts")
    lab: str | None = _setting(_text, None, "name of the lab whose host this is (slipstream lab)")
    lab_rate: int | None = _setting(parse_rate, None, "rate of the lab's links")
    log: str = _setting(
        _one_of("warning", "info", "debug"),
        "warning",
        "what ranks say on standard error: info adds what a job runs on, debug which plan each collective takes",
    )
    timeline: str | None = _setting(
        _text,
        None,
        "file of the timeline of all ranks; with {rank} in it, which is replaced, each rank writes its own",
    )
    metrics_port: int | None = _setting(
        _whole(1, 65535), None, "port of Prometheus metrics: rank r of a host serves them at this one + r"
    )
    metrics_bind: str = _setting(
        _numeric_address, "127.0.0.1", "numeric address at which the metrics are served, such as 0.0.0.0"
    )
    summary: str = _setting(
        _summary, "0", "1: rank 0 prints a summary as the job ends; FILE.json: it writes one there"
    )
    top: bool = _setting(_switch, True, "0: `slipstream top` does not see this job")
    timeline_detail: str = _setting(
        _one_of("operations", "steps"),
        "operations",
        "steps: the timeline also shows each chunk in each step of a plan",
    )
    host_name: str | None = _setting(_text, None, "what messages call this host; set by `slipstream run`")
    jax_coordinator: str | None = _setting(
        _text, None, "where the processes of a JAX program meet; set by `slipstream run`"
    )
    min_np: int | None = _setting(
        _size, None, "how many ranks must be left for the job to go on; set by `slipstream run`"
    )
    report: str | None = _setting(
        _text, None, "the pipe by which a rank tells its launcher of an exception; set by `slipstream run`"
    )
    full_traceback: bool = _setting(_switch, False, "1: tracebacks of ranks show slipstream's own frames too")
    replace: tuple[str, ...] = _setting(
        _some_of(*REPLACEABLE), (), "backends of torch.distributed that slipstream stands in for"
    )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Reads the settings (default: from ``os.environ``).

        Raises ValueError naming the variable when one is unknown, malformed, or at odds with another.
        """
        environ = os.environ if environ is None else environ
        fields = {PREFIX + field.name.upper(): field for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for variable in sorted(environ):
            if not variable.startswith(PREFIX):
                continue
            if variable not in fields:
                raise ValueError(
                    f"{variable}: slipstream has no such variable{did_you_mean(variable, fields)}"
                )
            field, text = fields[variable], environ[variable]
            try:
                values[field.name] = field.metadata["parse"](text)
            except ValueError as error:
                raise _malformed(variable, error, text if field.repr else None) from None
        if of_horovod(environ):
            from slipstream.base import horovod_knobs  # few jobs have any

            for variable, name, text in horovod_knobs.values(environ):
                try:
                    values[name] = fields[PREFIX + name.upper()].metadata["parse"](text)
                except ValueError as error:
                    raise _malformed(variable, error, text) from None
        settings = cls(**values)
        settings._check_pairs()
        return settings

    def _check_pairs(self) -> None:
        for low, high in (("rank", "size"), ("local_rank", "local_size"), ("cross_rank", "cross_size")):
            number, count = getattr(self, low), getattr(self, high)
            name, bound = PREFIX + low.upper(), PREFIX + high.upper()
            if (number is None) != (count is None):
                missing = name if number is None else bound
                raise ValueError(f"{missing}: missing; {low} and {high} belong together")
            if number is not None and number >= count:
                raise ValueError(f"{name}: {number} is not below {bound}={count}")
        if self.secret is not None and self.secret_file is not None:
            raise ValueError(f"{PREFIX}SECRET_FILE: give it or {PREFIX}SECRET, not both")
        if self.reducer_secret is not None and self.reducer_secret_file is not None:
            raise ValueError(f"{PREFIX}REDUCER_SECRET_FILE: give it or {PREFIX}REDUCER_SECRET, not both")


def of_horovod(environ: Mapping[str, str] | None = None) -> list[str]:
    """The variables that set something in Horovod (`horovod_knobs`), without those by which launchers number ranks.

    ``environ``: None is that of this process.
    """
    environ = os.environ if environ is None else environ
    return [one for one in environ if one.startswith("HOROVOD_") and not _PLACES.fullmatch(one)]


def variables() -> dict[str, str]:
    """Every variable slipstream reads, with what it means."""
    return {PREFIX + field.name.upper(): field.metadata["doc"] for field in dataclasses.fields(Settings)}
