"""One rank of a soak: soak_rank.py OPTIONS, a JSON object that `soak.py` writes.

A rank joins the job, works for a while, and leaves it, again and again. It works in rounds: several threads at once
run batches of random operations, each on groups of its own; then rank 0 says how it goes on. All results are compared
with what NumPy makes of inputs that every rank draws from the seed. Whenever the rank has left the job it counts
what it still holds.

The test gives its orders by files: FOLDER/stop ends the soak, FOLDER/kill names a rank that kills itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import itertools
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from lanes_rank import connection_from, reset_connection
from operations import SeededData, batch
from random_rank import Rank

import slipstream

HANGS = 150.0  # seconds after which a round's end is not expected any more
LEAST_ROUNDS = 8  # of a session, however slow the machine is
GROUPS = 3  # of each thread
AFTER_A_LOSS = 1.5  # seconds that survivors go on
_libc = ctypes.CDLL(None)


class Mallinfo(ctypes.Structure):
    """What glibc's ``mallinfo2`` returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks")
    ] + [("fordblks", ctypes.c_size_t), ("keepcost", ctypes.c_size_t)]


_libc.mallinfo2.restype = Mallinfo


class Killed(Exception):
    """The rank that was to die is dead, and every call that failed has named it."""


class Breaker(threading.Thread):
    """Resets or half-closes a random connection of this rank's about every ``every`` seconds, until closed."""

    def __init__(self, every: float, seed: int) -> None:
        super().__init__(daemon=True)
        self.every, self.random = every, random.Random(seed)
        self.stop = threading.Event()
        self.broken = 0

    def run(self) -> None:
        """The thread."""
        while not self.stop.wait(self.random.uniform(0, 2 * self.every)):
            lanes = [lane for link in slipstream.link_statistics() for lane in link.lanes if lane.up]
            lanes = [lane for lane in lanes if lane.local]
            if lanes:
                self.broken += self.break_one(self.random.choice(lanes).local)

    def break_one(self, local: str) -> bool:
        """Breaks the connection whose own address is ``local``; whether there was one."""
        if self.random.random() < 0.5:
            return reset_connection(local)
        sock = connection_from(local)
        if sock is None:
            return False
        with sock, contextlib.suppress(OSError):
            sock.shutdown(self.random.choice([socket.SHUT_RD, socket.SHUT_WR]))
            return True
        return False

    def close(self) -> None:
        """Ends it."""
        self.stop.set()
        if self.is_alive():
            self.join()


class Caller:
    """What one thread of a rank does: batches of operations on its own groups."""

    def __init__(self, seed: tuple[int, ...]) -> None:
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.number = 0
        size = slipstream.size()
        members = [self.rng.permutation(size)[: int(self.rng.integers(2, size + 1))] for _ in range(GROUPS)]
        groups = [self.group([int(r) for r in ranks]) for ranks in members]
        if seed[-1] == 0:  # the group that has the reducers; one thread alone keeps its order
            members[0], groups[0] = np.arange(size), slipstream.world()
        self.sizes = [len(ranks) for ranks in members]
        self.rank = Rank(seed, groups, SeededData(seed))

    def group(self, members: list[int]) -> slipstream.Group | None:
        """The group, if this rank is a member."""
        return slipstream.Group(members) if slipstream.rank() in members else None

    def round(self) -> None:
        """One batch. What fails is named by the operation that was under way."""
        free, operations = batch(self.rng, self.number, self.sizes)
        self.number += len(operations)
        self.named(lambda: self.rank.run(free, operations))

    def finish(self) -> None:
        """Waits for what is still under way."""
        self.named(self.rank.finish)

    def named(self, call: Any) -> None:
        """Calls; of an exception the operation is remembered."""
        try:
            call()
        except BaseException as error:
            error.soak_operation = f"thread {self.seed[-1]}, {self.rank.at}"  # type: ignore[attr-defined]
            raise


def held() -> dict[str, int]:
    """What a leak would make grow: open files, threads, shared memory in bytes, KiB allocated, MiB resident."""
    gc.collect()
    _libc.malloc_trim(0)
    heap = _libc.mallinfo2()
    status = Path("/proc/self/status").read_text().splitlines()
    resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    regions = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd" in line:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            regions += end - start
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "regions": regions,
        "allocated": (heap.uordblks + heap.hblkhd) >> 10,
        "resident": resident >> 10,
    }


@dataclass
class Soak:
    """This process: sessions one after another, and what came of them."""

    folder: str
    seed: int
    threads: int
    session_seconds: float
    break_every: float  # seconds; 0: no connection is broken
    number: int = field(default=int(os.environ["SLIPSTREAM_RANK"]))
    victim: int = -1  # that will kill itself, or has
    survived: int = -1
    operations: int = 0
    broken: int = 0
    counts: list[dict[str, int]] = field(default_factory=list)

    def run(self) -> None:
        """All sessions, and the counting after each."""
        session, more = 0, True
        while more:
            slipstream.init()
            Path(self.folder, f"started{self.number}").touch()
            try:
                more = self.work((self.seed, session), self.session_seconds)
            except Killed:
                more = False
                self.go_on()
            slipstream.shutdown()
            self.counts.append(held())
            session += 1
        last, usual = self.counts[-1], self.counts[min(1, len(self.counts) - 2)]  # the first brings caches
        for what in ("files", "threads", "regions"):
            assert last[what] <= usual[what], f"{what} leak: {self.counts[:3]} ... {self.counts[-3:]}"
        assert not last["regions"], f"shared memory is left: {last}"
        for what, more in (("resident", 24), ("allocated", 4 << 10)):
            assert last[what] < usual[what] + more, (
                f"memory leaks ({what}): {self.counts[1 :: 1 + len(self.counts) // 20]} {last}"
            )

    def go_on(self) -> None:
        """The survivors of a loss work on together, if slipstream can."""
        self.survived, self.victim = self.victim, -1
        if hasattr(slipstream.Group, "shrink"):
            group = slipstream.world().shrink()
            assert self.survived not in group.former_ranks, group.former_ranks
            assert group.size == slipstream.size() == int(os.environ["SLIPSTREAM_SIZE"]) - 1
            self.work((self.seed, 1_000_000), AFTER_A_LOSS)

    def work(self, seed: tuple[int, ...], seconds: float) -> bool:
        """Rounds for a while; whether there is to be another session."""
        callers = [Caller((*seed, t)) for t in range(self.threads)]
        control = slipstream.Group(range(slipstream.size()))
        breaker = Breaker(self.break_every, self.number)
        if self.break_every:
            breaker.start()
        ends = time.monotonic() + seconds
        try:
            with ThreadPoolExecutor(self.threads) as pool:
                for turn in itertools.count(1):
                    faulthandler.dump_traceback_later(HANGS, exit=True)
                    self.together(pool, [caller.round for caller in callers])
                    over, stops = self.agreed(control, turn >= LEAST_ROUNDS and time.monotonic() > ends)
                    if over or stops:
                        break
                self.together(pool, [caller.finish for caller in callers])
                for _ in range(2):
                    slipstream.barrier(group=control)
                return not stops
        finally:
            breaker.close()
            faulthandler.cancel_dump_traceback_later()
            self.broken += breaker.broken
            self.operations += sum(caller.rank.compared for caller in callers)

    def agreed(self, control: slipstream.Group, over: bool) -> tuple[bool, bool]:
        """Whether this session, and whether the soak is over: as rank 0 says. It also says who is to die."""
        wishes = np.zeros(3, np.int64)
        if control.rank == 0:
            stops, order = (Path(self.folder, name) for name in ("stop", "kill"))
            wishes[0] = over
            if self.counts and self.survived < 0:  # so that there is a session to compare the last with
                wishes[1:] = stops.exists(), int(order.read_text()) + 1 if order.exists() else 0
        found = self.expecting_death(lambda: slipstream.all_reduce(wishes, slipstream.MAX, group=control))
        if found[2] and self.victim < 0:
            self.victim = int(found[2]) - 1
            if self.victim == slipstream.rank():
                timer = threading.Timer(random.uniform(0, 0.3), os.kill, (os.getpid(), signal.SIGKILL))
                timer.start()
        return (False, False) if self.victim >= 0 else (bool(found[0]), bool(found[1]))

    def together(self, pool: ThreadPoolExecutor, calls: list[Any]) -> None:
        """Calls all at once. Raises the gravest of what they raise."""
        futures = [pool.submit(call) for call in calls]
        errors = [error for future in futures if (error := future.exception()) is not None]
        errors.sort(key=lambda error: isinstance(error, slipstream.SlipstreamError))  # wrong values first
        if errors:
            error = errors[0]
            self.expecting_death(lambda: _raise(error))

    def expecting_death(self, call: Any) -> Any:
        """Calls; PeerLost of the rank that was to die becomes Killed."""
        try:
            return call()
        except slipstream.PeerLost as error:
            if self.victim < 0 or error.rank != self.victim:
                raise
            raise Killed from None


def _raise(error: BaseException) -> None:
    raise error


def main() -> None:
    """Runs the soak of this rank, and prints a line of JSON."""
    soak = Soak(**json.loads(sys.argv[1]))
    try:
        soak.run()
    except BaseException as error:
        what = getattr(error, "soak_operation", "between operations")
        print(f"seed {soak.seed}, session {len(soak.counts)}: {what}", flush=True)
        raise
    report = {name: getattr(soak, name) for name in ("operations", "broken", "survived")}
    report.update(sessions=len(soak.counts), first=soak.counts[0])
    print(json.dumps({**report, "last": soak.counts[-1]}), flush=True)


main()
