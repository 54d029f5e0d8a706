"""A server that answers questions and stores nothing: a reducer's, for instance, which jobs ask to take them.

    ASK: the question, at most 4 KiB if nothing else is said    OK: the answer

Who asks is cut off 5 s after it came.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence

from slipstream.comm.rendezvous import admission
from slipstream.comm.rendezvous.requests import ASK, MAX_QUESTION, OK
from slipstream.comm.rendezvous.server import Quota, Server
from slipstream.comm.rendezvous.store_clients import Client

__all__ = ["QuestionServer"]


class QuestionServer:
    """Answers questions until `close`: arguments as for `Server`.

    ``answer`` returns the answer to a question (its bytes, who asks, whether encrypted). It runs on the server's thread
    and must not raise.
    """

    def __init__(
        self,
        bind: str | Sequence[str],
        secret: bytes,
        job: str,
        port: int,
        answer: Callable[[bytes, str, bool], bytes],
        encrypt: bool | None = False,
        *,
        listeners: list[socket.socket] | None = None,
        most: int = MAX_QUESTION,
    ) -> None:
        """``most``: bytes of a question."""
        self.requests: Mapping[int, int] = {ASK: most}
        self._answer = answer
        self._server = Server(self, Quota(256 << 20), bind, secret, job, port, listeners, encrypt=encrypt)
        self.address = self._server.address
        self._server.start()

    def close(self) -> None:
        """Stops serving and closes every connection; harmless when repeated."""
        self._server.close()
        self._answer = _nobody  # who answered may own this server

    def forget(self) -> None:
        """In a forked child: closes its copies of the descriptors."""
        self._server.forget()

    def execute(self, client: Client, op: int, body: memoryview) -> None:
        """A question."""
        self._server.reply(client, OK, self._answer(bytes(body), client.peer, client.encrypt))

    def admitted(self, client: Client) -> None:
        """It has the rest of its time for its question."""
        self._server.set_deadline(client, client.born + admission.SECONDS)

    def overdue(self, client: Client) -> None:
        """It has had its time."""
        self._server.drop(client)

    def dropped(self, client: Client) -> None:
        """Nobody waits for it."""

    def differs(self, client: Client, why: str) -> None:
        """It has been told, which is enough."""

    def woken(self) -> None:
        """Nothing comes from other threads."""


def _nobody(question: bytes, who: str, encrypted: bool) -> bytes:
    return b""
