from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

def set_error_factory(factory: Callable[[int, int, str, str], BaseException]) -> None: ...
def leak(object: Any) -> None: ...
def orphans() -> int: ...
def begun() -> int: ...
def list_of(kind: type, otherwise: Callable[[Any], Any], value: Any) -> Any: ...
def cpu_level() -> str: ...
def congestion(name: str) -> str: ...
def crypto_version() -> str: ...
def reduces(dtype: int, op: int) -> bool: ...
def reduce(dtype: int, op: int, dst: int, a: int, b: int, count: int) -> None: ...
def cast(source: int, target: int, dst: int, src: int, count: int) -> None: ...

class Plan:
    @staticmethod
    def compile(
        rank: int,
        size: int,
        blocks: int,
        rows: NDArray[np.int32],
        deps: NDArray[np.int32],
        split: bool = False,
    ) -> Plan: ...

class Group:
    @property
    def id(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> list[int]: ...

class Work:
    def done(self) -> bool: ...
    def source(self) -> int: ...
    def wait(self, timeout: float | None = None) -> bool: ...

class Completions:
    def __init__(self) -> None: ...
    def add(self, work: Work, token: int) -> None: ...
    def post(self, token: int) -> None: ...
    def wait(self, timeout: float | None = None) -> int | None: ...
    def close(self) -> None: ...

class Records:
    def __init__(self, secret: bytes, hello: bytes, nonce: bytes, client: bool) -> None: ...
    def seal(self, text: bytes) -> bytes: ...
    def open(self, bytes: bytes) -> bytes: ...

class Session:
    def __init__(
        self,
        rank: int,
        size: int,
        job: str,
        secret: bytes,
        heartbeat: float = 10.0,
        timeout: float = 1800.0,
        lanes: int = 2,
        spin_us: int = 0,
        round_robin: bool = False,
        zero_copy: bool = True,
        threads: int = 0,
        cpus: list[int] = ...,
        lend_from: int = 0,
        congestion: str = "",
        checksums: str = "auto",
        encrypt: bool = False,
    ) -> None: ...
    def listen_shm(self) -> str: ...
    def listen_tcp(self, addresses: list[str]) -> int: ...
    def start(self, peers: Sequence[tuple[str, bool, str, list[str], int]]) -> None: ...
    def make_group(self, id: int, ranks: list[int]) -> Group: ...
    def allocate(self, bytes: int) -> NDArray[np.uint8]: ...
    def abort(self, why: str) -> None: ...
    def abandon(self, what: str) -> None: ...
    def probe(self, ranks: Sequence[int], timeout: float) -> list[int]: ...
    def close(self, words: str = "", tell: bool = True) -> None: ...
    def links(self) -> tuple[int, int]: ...
    def link_statistics(self) -> list[dict[str, Any]]: ...
    def start_trace(self, capacity: int) -> None: ...
    def stop_trace(self) -> None: ...
    def take_trace(self) -> tuple[list[dict[str, Any]], int]: ...
    def check(self) -> None: ...
    def report(self) -> str: ...
    def quiet(self) -> bool: ...
    def await_memory(
        self,
        group: Group,
        plan: Plan,
        operation: str,
        address: int,
        bytes: int,
        writes: bool,
        timeout: float = 0.0,
        channel: int = 0,
    ) -> None: ...
    def receive_any(
        self,
        group: Group,
        plans: Sequence[Plan],
        channels: Sequence[int],
        operation: str,
        dtype: int,
        dst: int,
        count: int,
        chunk_bytes: int,
        signed_count: int,
        extra: int,
        timeout: float = 0.0,
        keep: object = None,
    ) -> Work: ...
    def submit(
        self,
        group: Group,
        plan: Plan,
        operation: str,
        dtype: int,
        op: int,
        src: int,
        dst: int,
        count: int,
        chunk_bytes: int,
        root: int = -1,
        name: str = "",
        prescale: float = 1.0,
        postscale: float = 1.0,
        divisor: int = 1,
        in_offsets: list[int] | None = None,
        out_offsets: list[int] | None = None,
        signed_count: int = 0,
        extra: int = 0,
        timeout: float = 0.0,
        channel: int = 0,
        copy_in: tuple[int, int, int] | None = None,
        copy_out: tuple[int, int, int] | None = None,
        keep: object = None,
    ) -> Work: ...
    def run(
        self,
        group: Group,
        plan: Plan,
        operation: str,
        dtype: int,
        op: int,
        src: int,
        dst: int,
        count: int,
        chunk_bytes: int,
        root: int = -1,
        name: str = "",
        prescale: float = 1.0,
        postscale: float = 1.0,
        divisor: int = 1,
        in_offsets: list[int] | None = None,
        out_offsets: list[int] | None = None,
        signed_count: int = 0,
        extra: int = 0,
        timeout: float = 0.0,
        channel: int = 0,
        copy_in: tuple[int, int, int] | None = None,
        copy_out: tuple[int, int, int] | None = None,
        keep: object = None,
    ) -> None: ...

def use_reducers(
    session: Session,
    group: Group,
    job: str,
    secret: bytes,
    reducers: Sequence[tuple[str, Sequence[str], int]],
    star: Plan,
    small: Plan,
    heartbeat: float,
    lanes: int,
) -> ReducerClient: ...
def reducer_session(job: str, secret: bytes, incarnation: int) -> tuple[str, bytes]: ...

class ReducerClient:
    def registered(self, reducer: int, incarnation: int) -> None: ...
    def set_rates(self, rates: Sequence[float], worker: float) -> None: ...
    def part_seconds(self) -> list[float]: ...
    def states(self) -> list[dict[str, Any]]: ...

class ReducerServer:
    def __init__(
        self,
        workers: int,
        job: str,
        secret: bytes,
        plan: Plan,
        *,
        heartbeat: float,
        lanes: int,
        window_bytes: int,
        intake: float = 0.0,
        congestion: str = "",
        encrypt: bool = False,
    ) -> None: ...
    def listen_tcp(self, addresses: Sequence[str]) -> int: ...
    def start(self) -> None: ...
    def served(self) -> dict[str, Any]: ...
    def close(self) -> None: ...
