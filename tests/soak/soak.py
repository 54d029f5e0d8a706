"""Runs random operations on several ranks while connections, processes and links are disturbed, and checks it all.

All ranks draw operations and data from one seed, so the operations of a seed are always the same; when a disturbance
hits them is not. See soak_rank.py for what a rank does and counts.

    shm       ranks of one host: ranks are stopped for a while
    tcp       ranks over loopback: connections are reset and half-closed, too
    mixed     ranks that pretend to be two hosts: the same
    lab       two hosts with two ranks each in network namespaces: their cables are pulled, too (root)
    reducers  a host for each of four ranks, and two reducers that are killed, frozen and cut off, too (root)

With --kill one rank kills itself at the end: every other rank must name it, and they go on without it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
from comm import ranks
from reducer import cluster
from slipstream.lab import Lab

RANK = Path(__file__).with_name("soak_rank.py")
STORE = Path(ranks.__file__).with_name("store_process.py")
TRANSPORTS = ("shm", "tcp", "mixed", "lab", "reducers")
REDUCERS = 2
LONGEST_STOP = 1.5  # seconds, far below the heartbeat
STARTS = 60.0  # seconds in which all ranks have begun
ENDS = 120.0  # seconds in which all ranks are done once they are told to stop
ENVIRONMENT = {
    "SLIPSTREAM_TIMEOUT": "100",
    "SLIPSTREAM_HEARTBEAT": "20",
    "SLIPSTREAM_LANES": "3",
    "MALLOC_ARENA_MAX": "2",  # so that what is resident tells of leaks, not of how threads cut up the heap
    "MALLOC_MMAP_THRESHOLD_": "131072",
}


@dataclass(frozen=True)
class Soak:
    """What to run."""

    transport: str = "tcp"
    seed: int = 1
    seconds: float = 60.0
    ranks: int = 4
    threads: int = 2
    session_seconds: float = 5.0
    break_every: float = 0.3  # seconds between broken connections, on each rank
    kill: bool = False

    def command(self) -> str:
        """What a user types to have the same operations again."""
        words = ["python", "tests/soak/soak.py", "--transport", self.transport, "--seed", str(self.seed)]
        words += [
            "--seconds",
            f"{self.seconds:g}",
            "--ranks",
            str(self.ranks),
            "--threads",
            str(self.threads),
        ]
        words += ["--session-seconds", f"{self.session_seconds:g}", "--break-every", f"{self.break_every:g}"]
        return shlex.join([*words, "--kill"] if self.kill else words)


@dataclass
class Field:
    """The job under way, and what can be done to it."""

    ranks: Sequence[ranks.Rank]
    random: random.Random
    lab: Lab | None = None
    reducers: cluster.Reducers | None = None

    def disturbances(self) -> dict[str, Callable[[], None]]:
        """Each does one thing and undoes it."""
        found: dict[str, Callable[[], None]] = {"stop": self.stop}
        if self.lab is not None:
            found["cut"] = self.cut
        if self.reducers is not None:
            found |= {f"{how} a reducer": partial(self.harm, how) for how in ("kill", "freeze", "cut")}
        return found

    def wait(self, longest: float) -> None:
        """Waits at random, more often briefly than long, or until a rank has ended."""
        ends = time.monotonic() + 0.02 * (longest / 0.02) ** self.random.random()
        while (left := ends - time.monotonic()) > 0 and not self.ended():
            time.sleep(min(left, 0.1))

    def ended(self) -> bool:
        """Whether any rank has ended."""
        return any(rank.process.poll() is not None for rank in self.ranks)

    def stop(self) -> None:
        """A rank is stopped, and goes on."""
        process = self.random.choice(self.ranks).process
        process.send_signal(signal.SIGSTOP)
        try:
            self.wait(LONGEST_STOP)
        finally:
            process.send_signal(signal.SIGCONT)

    def cut(self) -> None:
        """The cable of a host is pulled, and plugged in again."""
        assert self.lab is not None
        host = self.random.choice([host.name for host in self.lab.spec.hosts if not host.reducer])
        self.lab.cut(host)
        try:
            self.wait(LONGEST_STOP)
        finally:
            self.lab.heal(host)

    def harm(self, how: str) -> None:
        """A reducer is killed, frozen or cut off, and comes back."""
        assert self.reducers is not None
        name = self.random.choice(sorted(self.reducers.running))
        self.reducers.harm(name, how)
        try:
            self.wait(3 * LONGEST_STOP)
        finally:
            self.reducers.mend(name, how)


@contextlib.contextmanager
def started(soak: Soak, folder: Path) -> Iterator[Field]:
    """The job, with its lab and its reducers if it has them."""
    options = {name: getattr(soak, name) for name in ("seed", "threads", "session_seconds")}
    options.update(folder=str(folder), break_every=0 if soak.transport == "shm" else soak.break_every)
    arguments = [json.dumps(options)]
    chance = random.Random(soak.seed)
    if soak.transport in ranks.TRANSPORTS:
        with ranks.started(
            RANK, soak.ranks, transport=soak.transport, args=arguments, env=ENVIRONMENT, new=True
        ) as processes:
            yield Field(processes, chance)
        return
    with_reducers = soak.transport == "reducers"
    hosts = soak.ranks if with_reducers else -(-soak.ranks // 2)
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab(hosts, reducers=REDUCERS if with_reducers else 0, rate="500mbit"))
        env: dict[str, str] = {**ENVIRONMENT, **lab.environment()}
        reducers = None
        if with_reducers:
            reducers = stack.enter_context(cluster.reducers(lab, folder))
            env["SLIPSTREAM_REDUCERS"] = ",".join(f"{name}:{cluster.PORT}" for name in reducers.running)
            env["SLIPSTREAM_REDUCER_SECRET"] = cluster.ENVIRONMENT["SLIPSTREAM_REDUCER_SECRET"]
        places = [lab.hosts[r * hosts // soak.ranks] for r in range(soak.ranks)]
        processes = stack.enter_context(
            ranks.started(
                RANK,
                soak.ranks,
                transport="auto",
                args=arguments,
                env=env,
                prefix={r: inside(lab, place) for r, place in enumerate(places)},
                store_process=[*inside(lab, places[0]), sys.executable, str(STORE), lab.address(places[0])],
            )
        )
        yield Field(processes, chance, lab, reducers)


def inside(lab: Lab, host: str) -> list[str]:
    """What to put before a command so that it runs on a host of the lab, with this process's own ids."""
    return lab._inside(host, [], {})


def run(soak: Soak, folder: Path) -> dict[str, Any]:
    """Runs it to its end; returns what it did. AssertionError with the seed and the command if anything failed."""
    done: Counter[str] = Counter()
    with started(soak, folder) as field:
        begins = time.monotonic()
        while len(list(folder.glob("started*"))) < soak.ranks and time.monotonic() < begins + STARTS:
            field.wait(0.1)
        ends = time.monotonic() + soak.seconds
        disturbances, order = field.disturbances(), list[str]()
        while (time.monotonic() < ends or len(done) < len(disturbances)) and not field.ended():
            order = order or field.random.sample(sorted(disturbances), len(disturbances))  # each in turn
            kind = order.pop()
            disturbances[kind]()
            done[kind] += 1
            field.wait(1.0)
        victim = field.random.randrange(soak.ranks) if soak.kill else -1
        if soak.kill:
            (folder / "order").write_text(str(victim))
            (folder / "order").rename(folder / "kill")  # whole when it is seen
        else:
            (folder / "stop").touch()
        reports = finished(soak, field.ranks, victim)
    return {
        "operations": sum(report["operations"] for report in reports),
        "broken": sum(report["broken"] for report in reports),
        "sessions": reports[0]["sessions"],
        "survived": sorted({report["survived"] for report in reports}),
        "disturbances": dict(done),
        "held": {key: [reports[0]["first"][key], value] for key, value in reports[0]["last"].items()},
    }


def finished(soak: Soak, processes: Sequence[ranks.Rank], victim: int) -> list[dict[str, Any]]:
    """Waits for the ranks; what those that live have printed at the end."""
    deadline = time.monotonic() + soak.session_seconds + ENDS
    for rank in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            rank.process.wait(max(0.1, deadline - time.monotonic()))
    wrong = [
        rank for rank in processes if rank.process.poll() != (-signal.SIGKILL if rank.number == victim else 0)
    ]
    if wrong:
        # first those that failed by themselves
        wrong.sort(key=lambda rank: "PeerLost" in rank.text() or "Aborted" in rank.text())
        texts = [f"--- rank {r.number} (exit {r.process.returncode})\n{r.text()[-6000:]}" for r in wrong]
        raise AssertionError("\n".join([*texts, f"--- the same operations again: {soak.command()}"]))
    living = [rank for rank in processes if rank.number != victim]
    return [json.loads(rank.text().splitlines()[-1]) for rank in living]


EXAMPLES = """examples:
  python tests/soak/soak.py --transport tcp --seconds 60 --seed 7
  python tests/soak/soak.py --transport all --seconds 1800      # every transport in turn, half an hour in all
  python tests/soak/soak.py --transport lab --ranks 6 --threads 3 --kill
"""


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = Soak()
    parser.add_argument("--transport", choices=[*TRANSPORTS, "all"], default=usual.transport)
    parser.add_argument("--seed", type=int, default=usual.seed, help="of operations, data and disturbances")
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="in all")
    parser.add_argument("--ranks", type=int, default=usual.ranks)
    parser.add_argument("--threads", type=int, default=usual.threads, help="of each rank that call at once")
    parser.add_argument(
        "--session-seconds", type=float, default=usual.session_seconds, help="from init to shutdown"
    )
    parser.add_argument("--break-every", type=float, default=usual.break_every, help="seconds; 0: never")
    parser.add_argument("--kill", action="store_true", help="at the end one rank kills itself")
    given = vars(parser.parse_args(arguments))
    chosen = TRANSPORTS if given["transport"] == "all" else (given["transport"],)
    for transport in chosen:
        soak = Soak(**{**given, "transport": transport, "seconds": given["seconds"] / len(chosen)})
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(transport, json.dumps(run(soak, Path(folder))), flush=True)
            except AssertionError as error:
                raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
