"""The process on each host that starts the ranks there, passes on their output, and outlives none of them.

One thread, one selector. Its standard input is the launcher's hand: when that closes, for whatever reason,
every process below the agent is killed. Nothing below it can get away: orphans become the agent's children, or
those of its guard (`guard`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.launch import control_group, wire
from slipstream.launch.environment import as_horovod, as_mpi4jax, for_jax, laid_over
from slipstream.launch.guard import guarded
from slipstream.launch.outbox import Outbox
from slipstream.launch.processes import die_with_parent, kill_descendants, reap
from slipstream.launch.signals import SignalWatch
from slipstream.launch.wire import AgentMessages, Spec, SpecRank, message

_BACKLOG = 1 << 20  # unsent output beyond which the ranks have to wait
_DRAIN_SECONDS = 5.0  # to hand over the last output once all processes are gone
_CHUNK = 65536


@dataclass
class _Rank:
    number: int
    pid: int
    status: int | None = None
    pipes: dict[int, int] = field(default_factory=dict)  # fd -> message kind


class _HostAgent:
    """Starts the ranks of one host, sends what they print to the launcher, and ends them."""

    def __init__(self, group: Path | None = None) -> None:
        """``group``: the control group of the ranks, if there is one."""
        self._group = group
        self.selector = selectors.DefaultSelector()
        self.messages = AgentMessages(preamble=False)
        self.ranks: dict[int, _Rank] = {}  # by pid
        self.started = False
        self.running = 0
        self.outbox = Outbox(1, self.selector)
        self.outbox.add(wire.PREAMBLE)
        self.cut_off = False  # the launcher is gone
        self.paused = False
        self.kill_at: float | None = None

    # ---- the loop ----

    def run(self) -> int:
        self.signals = SignalWatch(self.selector, self._on_interrupt, self._reap)
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self.selector.register(0, selectors.EVENT_READ, self._on_launcher)
        while not self.cut_off and not (self.started and self.running == 0):
            self._flush()
            wait = None if self.kill_at is None else max(0.0, self.kill_at - time.monotonic())
            for key, _ in self.selector.select(wait):
                if key.fd in self.selector.get_map():
                    key.data(key.fd)
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                break
        control_group.end(self._group)
        gone = kill_descendants(self._reaped)
        control_group.end(self._group)  # now that it is empty
        if not self.cut_off:
            self._finish(gone)
        return 0 if gone else 1

    def _on_interrupt(self, _: int) -> None:
        self.cut_off = True

    def _reap(self) -> None:
        for pid, status in reap()[0]:
            self._reaped(pid, status)

    def _reaped(self, pid: int, status: int) -> None:
        rank = self.ranks.get(pid)
        if rank is None or rank.status is not None:
            return  # an adopted orphan
        rank.status = status
        self.running -= 1
        self._drain(rank)  # what it has written comes before the news that it ended
        self._send(wire.EXITED, rank.number, wire.CODE.pack(os.waitstatus_to_exitcode(status)))

    # ---- the launcher ----

    def _on_launcher(self, fd: int) -> None:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.cut_off = True
            return
        for kind, _, payload in self.messages.feed(data):
            if kind == wire.SPEC:
                self._start(Spec.unpack(payload))
            elif kind == wire.SIGNAL:
                number, grace = wire.SIGNAL_BODY.unpack(payload)
                self._signal(number)
                when = time.monotonic() + grace
                self.kill_at = when if self.kill_at is None else min(self.kill_at, when)
            elif kind == wire.KILL:
                self.kill_at = time.monotonic()

    def _signal(self, number: int) -> None:
        for rank in self.ranks.values():
            if rank.status is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(rank.pid, number)
                    os.killpg(rank.pid, signal.SIGCONT)  # what is stopped ends, too

    def _send(self, kind: int, rank: int, payload: bytes) -> None:
        self.outbox.add(message(kind, rank, payload))

    def _flush(self) -> None:
        """Writes what the launcher takes now, and lets the ranks wait while too much is left."""
        self.outbox.flush()
        if self.outbox.broken:
            self.cut_off = True
        paused = len(self.outbox) > _BACKLOG
        if paused == self.paused:
            return
        self.paused = paused
        for fd in [fd for rank in self.ranks.values() for fd in rank.pipes]:
            if paused:
                self.selector.unregister(fd)
            else:
                self.selector.register(fd, selectors.EVENT_READ, self._on_output)

    def _finish(self, gone: bool) -> None:
        for rank in self.ranks.values():
            self._drain(rank)
        if gone:
            self._send(wire.DONE, 0, b"")
        deadline = time.monotonic() + _DRAIN_SECONDS
        while self.outbox and not self.cut_off and time.monotonic() < deadline:
            self._flush()
            if self.outbox:
                self.selector.select(0.1)

    # ---- the ranks ----

    def _start(self, spec: Spec) -> None:
        common = laid_over(os.environ, spec.env) if spec.inherit else dict(spec.env)
        if spec.horovod:
            common = as_horovod(common)
        if spec.mpi4jax:
            common = as_mpi4jax(common)
        common = for_jax(common)
        cores = len(os.sched_getaffinity(0))
        common.setdefault("OMP_NUM_THREADS", str(max(1, cores // len(spec.ranks))))
        common.setdefault("PYTHONUNBUFFERED", "1")
        self.started, self.running = True, len(spec.ranks)
        for rank in spec.ranks:
            env = {**common, **rank.env}
            try:
                self._start_rank(rank, spec, env)
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                self.running -= 1
                program = spec.argv[0]
                why = _why(error, program, env.get("PATH", os.defpath))
                text = f"cannot start {program!r} in {spec.cwd}: {why}{advice(program, error)}"
                self._send(wire.FAILED, rank.rank, text.encode(errors="replace"))

    def _start_rank(self, rank: SpecRank, spec: Spec, env: dict[str, str]) -> None:
        agent = os.getpid()

        def prepare() -> None:  # in the child; safe: one thread
            die_with_parent(signal.SIGKILL, agent)
            control_group.enter(self._group)

        reports, pipe = os.pipe()
        env = env | {"SLIPSTREAM_REPORT": f"{pipe}:{os.fstat(pipe).st_ino}"}
        try:
            process = subprocess.Popen(
                spec.argv,
                cwd=spec.cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=(pipe,),
                preexec_fn=prepare,
            )
        except BaseException:
            os.close(reports)
            raise
        finally:
            os.close(pipe)
        # The loop reaps by waitpid, so Popen must neither wait nor warn.
        process.returncode = 0
        started = self.ranks[process.pid] = _Rank(rank.rank, process.pid)
        assert process.stdout is not None
        assert process.stderr is not None
        stdout, stderr = os.dup(process.stdout.fileno()), os.dup(process.stderr.fileno())
        process.stdout.close()
        process.stderr.close()
        for fd, kind in ((reports, wire.REPORT), (stdout, wire.OUT), (stderr, wire.ERR)):
            os.set_blocking(fd, False)
            started.pipes[fd] = kind
            if not self.paused:
                self.selector.register(fd, selectors.EVENT_READ, self._on_output)
        self._send(wire.STARTED, rank.rank, wire.PID.pack(process.pid))

    def _drain(self, rank: _Rank) -> None:
        for fd in list(rank.pipes):
            for _ in range(_BACKLOG // _CHUNK):  # bounded, as a process it left behind may write without end
                if not self._on_output(fd):
                    break

    def _on_output(self, fd: int) -> bool:
        """Passes on one chunk of a rank's output; False when there is no more for now."""
        rank = next(rank for rank in self.ranks.values() if fd in rank.pipes)
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            kind = rank.pipes.pop(fd)
            if fd in self.selector.get_map():
                self.selector.unregister(fd)
            os.close(fd)
            self._send(kind, rank.number, b"")  # the end of this stream
            return False
        if rank.pipes[fd] == wire.ERR:  # a rank reports what it is about to write
            for other in [other for other, kind in rank.pipes.items() if kind == wire.REPORT]:
                self._on_output(other)
        self._send(rank.pipes[fd], rank.number, data)
        return True


def _why(error: Exception, program: str, path: str) -> str:
    """Why a command cannot be started: the system's "No such file" is also said of one that is not on the PATH.

    And of a script on the PATH whose interpreter does not exist.
    """
    if isinstance(error, FileNotFoundError) and "/" not in program:
        found = shutil.which(program, path=path)
        if found is None:
            return "no folder of PATH has a command of that name"
        return f"{error.strerror}: {found}, its interpreter, or the folder"
    return str(getattr(error, "strerror", None) or error)


def advice(program: str, error: Exception | None = None) -> str:
    """What may be meant by a command that cannot be started."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return "; raise the limit (ulimit -n), or run fewer ranks on this host"
    if isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ENOMEM):
        return "; the host has too little memory or too many processes (ulimit -u)"
    if program.endswith(".py"):
        return f"; Python runs a script: slipstream run ... -- python {program}"
    if program == "python":
        return "; name the interpreter, python3 perhaps, or its path"
    return ""


def main() -> int:
    """Runs the agent of one host, and its guard, until its ranks are gone."""
    if "--local" in sys.argv[1:]:
        # If the launcher dies, standard input closes, and a guard that is stopped has to wake to see it.
        die_with_parent(signal.SIGCONT, os.getppid())
    mark = next((one for one in sys.argv if one.startswith("--job=")), "")
    group = control_group.make(mark) if mark else None
    return guarded(lambda: _HostAgent(group).run(), group)


if __name__ == "__main__":
    sys.exit(main())
