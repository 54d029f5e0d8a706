"""A stager that a test moves step by step: a simulated device, and a network whose operations end when it says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from faces.torch_distributed.simulated import Simulated
from slipstream.faces.torch_distributed.devices.memory import TensorMemory
from slipstream.staging.calls import Call
from slipstream.staging.stager import Limits, Stager
from slipstream.staging.transfers import Transfer

ROW = 64  # elements; parts are whole rows of these in the tests of states
SMALL = Limits(part=ROW * 4, window=4 * ROW * 4)
PATIENCE = 20.0


# ---- a network whose operations end when a test says so


@dataclass
class NetworkWork:
    """What `Call.issue` returns; also its own native handle."""

    label: str
    src: int
    dst: int
    counts: tuple[list[int], list[int]]
    over: bool = False
    error: Exception | None = None

    @property
    def native(self) -> NetworkWork:
        return self

    def wait(self) -> None:
        assert self.over
        if self.error is not None:
            raise self.error


@dataclass
class Network:
    """All that was issued, in its order. Operations leave memory as it is: what is sent comes back."""

    works: list[NetworkWork] = field(default_factory=list)

    def issuer(self, label: str) -> Callable[..., Any]:
        def issue(
            src: int, dst: int, sent: Sequence[int], received: Sequence[int], keep: object, sync: bool
        ) -> NetworkWork:
            assert not sync
            self.works.append(NetworkWork(label, src, dst, (list(sent), list(received))))
            return self.works[-1]

        return issue

    def labels(self) -> list[str]:
        return [work.label for work in self.works]


class Members:
    """A group, as far as staging looks at it without the network: it can be ended."""

    def __init__(self) -> None:
        self.rank = 0
        self.session = self.native = self
        self.ranks = [0]
        self.aborted: list[str] = []

    def abort(self, why: str) -> None:
        self.aborted.append(why)


class Completions:
    """`_core.Completions` for works of a `Network`."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._works: dict[int, NetworkWork] = {}

    def add(self, work: NetworkWork, token: int) -> None:
        self._works[token] = work

    def post(self, token: int) -> None:
        self._tokens.append(token)

    def close(self) -> None:
        self._tokens.insert(0, -1)

    def wait(self, timeout: float | None) -> int | None:
        self._tokens += [token for token, work in self._works.items() if work.over]
        self._works = {token: work for token, work in self._works.items() if not work.over}
        if not self._tokens:
            time.sleep(min(timeout or 0.0, 1e-4))
        return self._tokens.pop(0) if self._tokens else None


def transfer(
    device: Any,
    members: Any,
    call: Call,
    src: torch.Tensor | None,
    dst: torch.Tensor | None,
    finish: Callable[[], None] | None = None,
    tensors: Sequence[torch.Tensor] = (),
) -> Transfer:
    """A call to stage on tensors."""
    ends = [None if tensor is None else TensorMemory(tensor) for tensor in (src, dst)]
    results = [TensorMemory(tensor) for tensor in tensors]
    return Transfer(device, members, call, *ends, finish, results)


class Rig:
    """A stager that a test drives turn by turn, with a simulated device and a network."""

    def __init__(self, limits: Limits = SMALL) -> None:
        self.device = Simulated()
        self.network = Network()
        self.members = Members()
        self.stager = Stager(limits, Completions())

    def stage(
        self,
        label: str,
        src: Any,
        dst: Any,
        ends: Any = None,
        serial: bool = False,
        finish: Callable[[], None] | None = None,
        tensors: Sequence[torch.Tensor] = (),
    ) -> Any:
        call = Call(
            label,
            4,
            [src.numel()] if src is not None else [],
            [dst.numel()] if dst is not None else [],
            self.network.issuer(label),
            reads=src is not None,
            writes=dst is not None,
            ends=ends,
            serial=serial,
        )
        return self.stage_call(call, src, dst, finish, tensors)

    def stage_call(self, call: Call, src: Any, dst: Any, *options: Any) -> Any:
        return self.stager.stage(transfer(self.device, self.members, call, src, dst, *options))

    def until(self, condition: Callable[[], bool]) -> None:
        """Lets the stager turn until the condition holds."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"not reached; issued so far: {self.network.labels()}"
            self.stager.turn()

    def rest(self) -> None:
        """Lets the stager do all that it can do without another event."""
        for _ in range(50):
            self.stager.turn()

    def end(self, *works: NetworkWork, error: Exception | None = None) -> None:
        for work in works:
            work.error, work.over = error, True

    def end_all(self, pending: Any) -> None:
        def step() -> bool:
            self.end(*self.network.works)
            return bool(pending.done())

        self.until(step)

    def close(self) -> None:
        self.until(lambda: self.stager.pool.lent_bytes == 0)
        self.device.close()


def rows(count: int, start: float = 0.0) -> Any:
    return torch.arange(count * ROW, dtype=torch.float32) + start
