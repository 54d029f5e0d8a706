"""Reducers of a job: what its ranks are told of them, and those that the launcher starts for it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.base.errors import SlipstreamError
from slipstream.base.settings import Settings
from slipstream.comm.rendezvous.secret import reducer_secret
from slipstream.launch.environment import passed_on
from slipstream.launch.wire import Spec, SpecRank

__all__ = ["SOURCE", "StartedReducer", "python_path", "reducer_spec", "reducer_variables", "users_secret"]

SOURCE = str(Path(__file__).resolve().parents[2])
_MOST_LINE = 64 << 10


@dataclass(eq=False)
class StartedReducer:
    """One that an agent on ``host`` runs; the ranks reach it at ``address`` and, once it listens, ``port``."""

    host: str
    address: str
    port: int | None = None
    why: str = ""  # it does not run (any more)
    warnings: list[str] = field(default_factory=list)  # to be shown
    _lines: dict[bool, bytes] = field(default_factory=lambda: {False: b"", True: b""})

    @property
    def settled(self) -> bool:
        """Whether it is known if it runs."""
        return self.port is not None or bool(self.why)

    def feed(self, error: bool, data: bytes) -> None:
        """Takes what it printed: where it listens, and its log, of which warnings and what is no log is kept."""
        *whole, rest = (self._lines[error] + data).split(b"\n")
        self._lines[error] = rest[-_MOST_LINE:]
        for line in whole + ([rest] if not data else []):
            text = line.decode(errors="replace").strip()
            try:
                found = json.loads(text)
            except (ValueError, RecursionError):
                found = None
            if not isinstance(found, dict):
                self.warnings += [text] if text else []
            elif found.get("event") == "listening" and isinstance(found.get("port"), int):
                self.port = found["port"]
            elif found.get("level") in ("warning", "error", "critical"):
                self.warnings.append(str(found.get("message")))


def reducer_spec(env: dict[str, str], *, local: bool, loopback: bool) -> Spec:
    """What the agent of a host starts there. ``loopback``: the whole job is on this host."""
    argv = [sys.executable, "-m", "slipstream", "reducer", "--port", "0", "--drain-seconds", "0", "--json"]
    if loopback:
        argv += ["--bind", "127.0.0.1"]
    if local:
        env = env | {"PYTHONPATH": python_path(env.get("PYTHONPATH", ""))}
    # not where a file of the user's could stand in for a module
    return Spec(argv, "/", env, not local, [SpecRank(0, {})])


def python_path(given: str) -> str:
    """A PYTHONPATH by which processes in any folder find this slipstream, and what ``given`` names."""
    return os.pathsep.join([SOURCE, *(os.path.abspath(path) for path in given.split(os.pathsep) if path)])


def reducer_variables(reducers: Sequence[tuple[str, int]], secret: bytes) -> dict[str, str]:
    """What the ranks are told."""
    texts = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in reducers)
    return {"SLIPSTREAM_REDUCERS": ",".join(texts), "SLIPSTREAM_REDUCER_SECRET": secret.hex()}


def users_secret() -> bytes:
    """The secret of reducers that somebody else started: what `slipstream reducer` takes. ValueError if unsafe."""
    # A rank that launches a job of its own has a secret in its environment that no reducer knows.
    inside = "SLIPSTREAM_STORE" in os.environ
    settings = Settings.from_environment(passed_on(os.environ, remote=False) if inside else os.environ)
    try:
        return reducer_secret(settings)
    except SlipstreamError as error:
        raise ValueError(str(error)) from None
