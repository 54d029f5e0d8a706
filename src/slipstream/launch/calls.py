"""`slipstream.run`: calls a function as the ranks of a job on this host, from a notebook or a script.

The function, its arguments and what it returns are pickles in files of a folder that only this user can enter.
They are never read from anywhere else, and no secret is in them or on a command line. A process of its own runs
the launcher: it needs a main thread for its signals, which a notebook's kernel has other uses for. Its standard
input ends with this process, and the ranks with it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from slipstream.base.arguments import as_seconds
from slipstream.base.errors import SlipstreamError
from slipstream.base.settings import Settings
from slipstream.base.spans import format_spans
from slipstream.launch.hosts import Host, place
from slipstream.launch.launcher import run_job
from slipstream.launch.options import JobOptions
from slipstream.launch.reducers import python_path
from slipstream.launch.terminal import harmless

__all__ = ["CallOptions", "RankTraceback", "call", "run"]

_CURE = "pip install cloudpickle, or put it into a module that can be imported"
_ENDING = 20.0  # seconds for the launcher to end all ranks after an interrupt


class RankTraceback(Exception):
    """The traceback of an exception that a rank raised: the cause of the one that `run` raises."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class CallOptions:
    """How to call a function as a job; ``executable`` is the Python of the ranks, the rest is as in `JobOptions`."""

    np: int
    env: dict[str, str] = field(default_factory=dict)
    start_timeout: float | None = None
    executable: str = sys.executable
    output_dir: str | None = None
    interface: str | None = None
    verbose: bool = False


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    np: int | None = None,
    env: Mapping[str, str] | None = None,
    start_timeout: float | None = None,
    num_proc: int | None = None,
) -> list[Any]:
    """Calls ``fn(*args, **kwargs)`` as the ranks of a job, ``np`` new processes of this host; returns the results.

        def work(scale):
            slipstream.init()
            return slipstream.all_reduce(numpy.ones(4) * scale)

        totals = slipstream.run(work, args=[2.0], np=2)  # one result a rank, in order of rank

    ``fn`` joins the job by itself, by `slipstream.init`, ``hvd.init`` or ``torch.distributed``, as a script under
    ``slipstream run`` does. ``args``, ``kwargs`` and the results are pickled. With cloudpickle (the extra
    ``notebook``) it may be any function, such as one of a notebook; without it, one that can be imported. What the
    ranks print appears here, each line with its rank. ``env``: variables for the ranks. ``start_timeout``: seconds
    for them to find each other, default 60. ``num_proc``: Horovod's name of ``np``; give one of the two, default 2.

    Raises what ``fn`` raised on a rank, the first that was not just told of another's failure; its cause is that
    rank's traceback. Raises ValueError for a function that cannot be sent, and for ``np`` beside ``num_proc``;
    SlipstreamError when ranks end without a result.

    >>> slipstream.run(pow, args=[2, 3], np=2)
    [8, 8]
    """
    if np is not None and num_proc is not None:
        raise ValueError(f"np={np}, num_proc={num_proc}: they mean the same, give one of them")
    count = next((one for one in (np, num_proc) if one is not None), 2)
    return call(fn, args, kwargs, CallOptions(count, dict(env or {}), start_timeout))


def call(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None, options: CallOptions
) -> list[Any]:
    """`run`, with all the options that there are."""
    if options.np < 1:
        raise ValueError(f"np={options.np}: a job has at least one rank")
    if options.start_timeout is not None:
        seconds = as_seconds("start_timeout", options.start_timeout)
        env = options.env | {"SLIPSTREAM_START_TIMEOUT": f"{seconds:g}"}
        options = replace(options, start_timeout=seconds, env=env)
    if not callable(fn):
        raise TypeError(f"fn is not a function: {fn!r:.200}")
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise TypeError(f"args is not a list or tuple of the arguments of fn: {args!r:.200}")
    with tempfile.TemporaryDirectory(prefix="slipstream-run-") as name:  # mode 0700
        folder = Path(name)
        _write(folder / "call", _pickled_call(fn, tuple(args), dict(kwargs or {})))
        _write(folder / "request", json.dumps(asdict(options)).encode())
        code = _launch(folder)
        return _results(folder, options.np, code)


def _pickled_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    pickler, any_function = _pickler()
    try:
        if not any_function and getattr(fn, "__module__", None) == "__main__":
            raise pickle.PicklingError("it is defined in __main__")
        function = pickler.dumps((fn, args, kwargs))
    except Exception as error:
        cure = "" if any_function else f": {_CURE}"
        raise ValueError(f"{fn!r:.200} cannot be sent to the ranks: {error}{cure}") from None
    return pickle.dumps((sys.path, function))


def _pickler() -> tuple[Any, bool]:
    """cloudpickle, which takes any function, or pickle; and which of them it is."""
    try:
        return importlib.import_module("cloudpickle"), True
    except ImportError:
        return pickle, False


def _write(path: Path, data: bytes) -> None:
    """A whole file of mode 0600, or none."""
    part = path.with_name(f"{path.name}.part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    part.rename(path)


# ---- the caller's side ----


def _launch(folder: Path) -> int:
    """Runs the launcher in a process of its own and shows its output; returns its exit code."""
    process = subprocess.Popen(
        [sys.executable, "-m", "slipstream.launch.calls", "launch", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
        start_new_session=True,  # Ctrl-C reaches it through this process alone, in a notebook as on a terminal
    )
    readers = [
        threading.Thread(target=_show, args=(pipe, out), daemon=True)
        for pipe, out in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
    ]
    with process:
        try:
            for reader in readers:
                reader.start()
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_ENDING)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
        finally:
            for reader in readers:
                reader.join()
    return code


def _environment() -> dict[str, str]:
    """This process's, in which Python finds slipstream where this process did."""
    path = python_path(os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def _show(pipe: Any, out: TextIO) -> None:
    """Copies all lines to ``out``. What that does not take is lost and counted: an unread pipe would stop the job."""
    lost, why = 0, ""
    for line in pipe:
        try:
            out.write((harmless(line) if out.isatty() else line).decode(errors="replace"))
            out.flush()
        except Exception as error:  # of whatever stands in for a stream
            lost += len(line)
            why = str(error)
    if lost:
        with contextlib.suppress(Exception):
            sys.stderr.write(f"slipstream: warning: {lost} bytes of output were lost: {why}\n")


def _results(folder: Path, np: int, code: int) -> list[Any]:
    found: dict[int, dict[str, Any]] = {}
    for rank in range(np):
        path = folder / f"result.{rank}"
        if path.exists():
            found[rank] = pickle.loads(path.read_bytes())  # from our own ranks, in our own folder
    errors = [(rank, one) for rank, one in found.items() if "traceback" in one]
    if errors:
        # A rank that was told of another's failure has a SlipstreamError: that is not the cause.
        rank, first = min(errors, key=lambda one: (one[1]["told"], one[1]["time"]))
        raise _error_of(rank, first) from RankTraceback(f"rank {rank}:\n{first['traceback']}")
    missing = [rank for rank in range(np) if rank not in found]
    if missing:
        ranks = f"rank{'s' if len(missing) > 1 else ''} {format_spans(missing)}"
        raise SlipstreamError(f"{ranks} ended without a result; the job's exit code is {code}")
    return [pickle.loads(found[rank]["value"]) for rank in range(np)]


def _error_of(rank: int, found: dict[str, Any]) -> BaseException:
    if found["error"] is not None:
        error: BaseException = pickle.loads(found["error"])
        return error
    return SlipstreamError(f"rank {rank}: {found['summary']}")


# ---- the launcher's process, and the ranks ----


def _end_with_caller() -> None:
    """Ends this process as a signal would once its standard input has ended: the caller is gone."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _run_launcher(folder: Path) -> int:
    threading.Thread(target=_end_with_caller, daemon=True).start()
    given = CallOptions(**json.loads((folder / "request").read_text(encoding="utf-8")))
    settings = Settings.from_environment()
    if given.verbose:
        given.env.setdefault("SLIPSTREAM_LOG", "info")
    options = JobOptions(
        argv=[given.executable, "-m", "slipstream.launch.calls", "rank", str(folder)],
        placed=place(given.np, [Host("localhost", given.np)]),
        cwd=os.getcwd(),
        env=given.env,
        output_dir=None if given.output_dir is None else Path(given.output_dir),
        start_timeout=given.start_timeout or settings.start_timeout,
        interface=given.interface or settings.interface,
        verbose=given.verbose,
    )
    return run_job(options)


def _run_rank(folder: Path) -> int:
    """Calls the function and leaves its result, or its exception, in the folder."""
    rank = int(os.environ["SLIPSTREAM_RANK"])
    try:
        sys.path[:], call = pickle.loads((folder / "call").read_bytes())
        fn, args, kwargs = pickle.loads(call)
        value = fn(*args, **kwargs)
        try:
            result: dict[str, Any] = {"value": _pickler()[0].dumps(value)}
        except Exception as error:
            raise TypeError(f"what the function returned cannot be pickled: {error}") from None
    except BaseException as error:
        result = _described(error)
    _write(folder / f"result.{rank}", pickle.dumps(result))
    return 1 if "traceback" in result else 0


def _described(error: BaseException) -> dict[str, Any]:
    trace = error.__traceback__
    inner = trace.tb_next if trace is not None else None  # without our own frame
    text = "".join(traceback.format_exception(type(error), error, inner or trace))
    pickled = None
    try:
        pickled = _pickler()[0].dumps(error.with_traceback(None))
        pickle.loads(pickled)
    except Exception:  # it cannot be sent: its text can
        pickled = None
    summary = "".join(traceback.format_exception_only(type(error), error)).strip()
    if isinstance(error, SystemExit):  # which would end the caller, silently with code 0
        pickled, summary = None, f"the function called sys.exit({error.code!r}), so that it has no result"
    told = isinstance(error, SlipstreamError)
    return {"traceback": text, "error": pickled, "summary": summary, "told": told, "time": time.monotonic()}


if __name__ == "__main__":
    action = {"launch": _run_launcher, "rank": _run_rank}[sys.argv[1]]
    sys.exit(action(Path(sys.argv[2])))
