"""One process for the tests of `torch.distributed`: joins default groups and runs functions of the test files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from faces.persistent import load, serve


class Member:
    """This process's place in the default group, if there is one."""

    def __init__(self) -> None:
        self._meeting: str | None = None  # names the group
        self._store: dist.Store | None = None  # outlives the group: others may still be leaving it

    def leave(self) -> None:
        """Destroys the default group."""
        self._meeting = None
        if dist.is_initialized():
            dist.destroy_process_group()

    def join(self, rank: int, group: Mapping[str, Any]) -> None:
        """Becomes ``rank`` of the group described, unless this process is that already."""
        if self._meeting == group["meeting"]:
            return
        self.leave()
        backend, size, store, timeout = group["kind"]
        self._store = _store(store, group["meeting"], rank, size)
        dist.init_process_group(
            backend, store=self._store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
        )
        self._meeting = group["meeting"]

    def answer(self, request: tuple[int, Mapping[str, Any], str, str, tuple[Any, ...]] | None) -> Any:
        """Runs a check: (rank, group, file, function, arguments). None: only leaves the default group."""
        if request is None:
            return self.leave()
        rank, group, file, name, arguments = request
        with _variables(group["environment"]):
            self.join(rank, group)
            torch.manual_seed(1234)  # each check starts alike, whatever ran before
            result = getattr(load(file), name)(*arguments)
            if group["fresh"]:
                self.leave()
        return result


def _store(kind: str, meeting: str, rank: int, size: int) -> dist.Store:
    file = dist.FileStore(meeting, size)
    if kind == "file":
        return file
    if rank == 0:
        server = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
        file.set("port", str(server.port))
        return server
    return dist.TCPStore("127.0.0.1", int(file.get("port")), size, is_master=False)


@contextmanager
def _variables(more: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


if __name__ == "__main__":
    member = Member()
    serve(member.answer)
    member.leave()
