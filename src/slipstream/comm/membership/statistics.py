"""What the links of this process have done: which transport each takes, bytes, rates and losses, lane by lane."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.comm.membership.job import current_or_only

__all__ = ["LaneStatistics", "LinkStatistics", "link_statistics"]


@dataclass(frozen=True)
class LaneStatistics:
    """One connection of a link. ``local``, ``remote``: address:port, "" while it is broken.

    ``control``: it carries small messages, and words about the others. ``sent``, ``received``: bytes of bulk data.
    ``rate``: bytes a second that it takes while it is busy. As the kernel sees it: ``delivery_rate`` (bytes a
    second), ``rtt`` (seconds), ``retransmits`` (TCP segments). ``zero_copy``: large sends are
    not copied, as far as is known yet. ``zero_copied``: bytes that the kernel says it sent without a copy.
    ``zero_copy_from``: how large such sends are at least, in bytes, as far as has been measured; 0: there are none.
    """

    local: str
    remote: str
    control: bool
    up: bool
    sent: int
    received: int
    rate: float
    delivery_rate: int
    rtt: float
    retransmits: int
    zero_copy: bool
    zero_copied: int
    zero_copy_from: int


@dataclass(frozen=True)
class LinkStatistics:
    """All that joins this process to ``rank``. ``transport``: "tcp", or "shm" within a host. ``closed``: it was there,
    and is not any more; the rest is what it had done by then, without what the kernel said of its connections.

    ``sent``, ``received``: bytes of payload; over tcp of bulk data alone, the sum of the lanes. Of the connections of
    tcp: how many were ``lost`` and repaired, or ``replaced`` because they were slow; ``repeated``: bytes that were
    sent again; ``dropped``: bytes that came again; ``damaged``: how many connections were lost because what came over
    them was not what the rank had sent; ``encrypted``: they are, by SLIPSTREAM_ENCRYPT. Of shm: ``single_copy``: the
    rank can read private memory of this process, so that large data for it is copied once; ``single_copied``: so
    many bytes of ``sent`` were;
    ``lanes``: each of them, none for shm.
    """

    rank: int
    transport: str
    closed: bool
    sent: int
    received: int
    lost: int
    replaced: int
    repeated: int
    dropped: int
    damaged: int
    encrypted: bool
    single_copy: bool
    single_copied: int
    lanes: tuple[LaneStatistics, ...]

    def share(self, lane: LaneStatistics) -> float:
        """Which part of the bytes that were sent to the rank went over this lane, 0 to 1."""
        total = sum(one.sent for one in self.lanes)
        return lane.sent / total if total else 0.0


def link_statistics() -> list[LinkStatistics]:
    """The links of this process, in the order of the ranks: one for each rank that it has had a link to.

    A link is opened when it is first needed, and closes when either end leaves the job or the job fails. It is told
    until this process calls `shutdown`, with ``closed``; if there has been a second link to a rank, that one is. Links
    to reducers are not told. The bytes include those by which a job of several hosts measures its network at the start.
    Without `init` the links are those of the job of ``torch.distributed``. Raises SlipstreamError if there is no job.

    >>> slipstream.barrier()
    >>> [(link.rank, link.transport) for link in slipstream.link_statistics()]  # on rank 0
    [(1, 'shm')]
    """
    found = []
    for link in current_or_only().session.link_statistics():
        lanes = tuple(LaneStatistics(**lane) for lane in link["lanes"])
        found.append(LinkStatistics(**{**link, "lanes": lanes}))
    return found
