"""Proof that bytes come from a rank of this job, from this operation, and unchanged.

For what must not be believed otherwise: a pickle, above all, which runs code when it is read. Each rank makes a tag
(HMAC-SHA256) for each part that it sends. The key is derived from the job's secret and a nonce to which every rank has
contributed. The tag covers the group, the operation and its number in the group, the rank that sends, and the part,
so that nothing recorded earlier, elsewhere, or from another rank is accepted.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Any, NoReturn

from slipstream.base.errors import SlipstreamError

__all__ = ["TAG_SIZE", "Authenticator", "authenticator", "next_authenticator"]

TAG_SIZE = 32  # bytes
_LABEL = b"slipstream object"


@dataclass(frozen=True)
class Authenticator:
    """Tags of one operation of a group; every member has made an equal one."""

    operation: str
    group: Any = field(repr=False)
    key: bytes = field(repr=False)
    context: bytes = field(repr=False)

    def tag(self, part: str, sender: int, data: bytes) -> bytes:
        """TAG_SIZE bytes that prove that rank ``sender`` of the job sent ``data`` as this ``part``."""
        text = f"{part}/{sender}/{len(data)}/".encode()
        return hmac.digest(self.key, self.context + text + data, "sha256")

    def check(self, part: str, sender: int, data: bytes, tag: bytes) -> None:
        """Ends the session on all ranks, and raises SlipstreamError, unless the tag is right."""
        if not hmac.compare_digest(tag, self.tag(part, sender, data)):
            self.refuse(
                sender,
                "the data changed on the way, or came from somebody else. Nothing of it was used. "
                "Look for whoever can alter traffic between the hosts, or for faulty hardware",
            )

    def refuse(self, sender: int, why: str) -> NoReturn:
        """Ends the session on all ranks, and raises SlipstreamError, because of what ``sender`` seems to have sent."""
        own = self.group.ranks[self.group.rank]
        text = f"{self.operation}: what rank {sender} sent is not what rank {own} got: {why}"
        self.group.session.abort(text)
        raise SlipstreamError(text)


def next_authenticator(group: Any, operation: str) -> Authenticator:
    """For the next operation of ``group``, a `Group`. Every member calls it in the same order."""
    return authenticator(group, operation, str(next(group.authenticated)))


def authenticator(group: Any, operation: str, number: str) -> Authenticator:
    """For the operation of that number, which the members count alike and use once."""
    job = group.job
    key = hmac.digest(job.membership.secret, _LABEL + job.nonce, "sha256")
    context = f"{group.id}/{number}/{operation}/".encode()
    return Authenticator(operation, group, key, context)
