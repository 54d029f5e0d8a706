"""Exchanges with the rank whose number differs in one bit: log2(n) partners instead of n-1 rounds.

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005). Where n
is no power of two, the members beyond the largest one fold: they hand their data in and get the result back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slipstream.plan.steps import Draft, Plan, Space

__all__ = ["all_reduce", "all_reduce_pass", "power_of_two_below", "recursive_doubling", "reduce"]


def power_of_two_below(size: int) -> int:
    """Return the largest power of two that is not above ``size`` (1 at least)."""
    return 1 << (size.bit_length() - 1)


def recursive_doubling(rank: int, size: int) -> Plan:
    """All-reduce by exchanging the whole buffer in log2(n) rounds (two more where n is no power of two).

    Partial sums alternate between TMP and OUT, so that no sum lands on what its own round sends: there,
    neither side could wait for its send without both waiting for ever. It lands where the round before sent
    from, and waits for that send.
    """
    draft = Draft("all_reduce", "recursive_doubling", rank, size, 1)
    power = power_of_two_below(size)
    if rank >= power:
        draft.send(rank - power, 0, Space.IN)
        draft.recv(rank - power, 0, Space.OUT)
        return draft.plan()
    rounds = power.bit_length() - 1
    here = Space.IN
    ready: tuple[int, ...] = ()
    folds = rank + power < size
    if folds:
        here = Space.TMP if rounds % 2 else Space.OUT  # so that the result ends in OUT without a copy
        ready = (draft.recv_reduce(rank + power, 0, Space.IN, here),)
    sent: tuple[int, ...] = ()
    for k in range(rounds):
        there = Space.OUT if here == Space.TMP else Space.TMP
        peer = rank ^ (1 << k)
        free, sent = sent, (draft.send(peer, 0, here, after=ready),)
        ready = (draft.recv_reduce(peer, 0, here, there, after=ready + free),)
        here = there
    if here == Space.TMP:
        ready = (draft.copy(0, Space.TMP, Space.OUT, after=ready + sent),)
    finished = draft.finish(0, Space.OUT, after=ready)
    if folds:
        draft.send(rank + power, 0, Space.OUT, after=(finished,))
    return draft.plan()


def all_reduce_pass(
    draft: Draft, members: Sequence[int], base: int, source: Space, after: Iterable[int] = ()
) -> list[int]:
    """Reduce ``source`` of all members, two at least, into OUT, finished, by recursive halving and doubling.

    The blocks are ``base`` and following, as many as the largest power of two of members. Returns the steps
    after which OUT is complete. ``after`` is what ``source`` waits for.
    """
    power = power_of_two_below(len(members))
    me = members.index(draft.rank)
    after = tuple(after)
    if me >= power:
        draft.send(members[me - power], base, source, count=power, after=after)
        return [draft.recv(members[me - power], base, Space.OUT, count=power)]
    folds = me + power < len(members)
    if folds:
        extra = members[me + power]
        after = (draft.recv_reduce(extra, base, source, Space.OUT, count=power, after=after),)
        source = Space.OUT
    low, width = 0, power
    while width > 1:
        width //= 2
        keep, give = (low + width, low) if me & width else (low, low + width)
        peer = members[me ^ width]
        draft.send(peer, base + give, source, count=width, after=after)
        reduced = draft.recv_reduce(peer, base + keep, source, Space.OUT, count=width, after=after)
        low, source, after = keep, Space.OUT, (reduced,)
    done = [draft.finish(base + me, Space.OUT, after=after)]
    while width < power:
        peer = members[me ^ width]
        draft.send(peer, base + low, Space.OUT, count=width, after=done)
        done.append(draft.recv(peer, base + (low ^ width), Space.OUT, count=width))
        low &= ~width
        width *= 2
    if folds:
        draft.send(members[me + power], base, Space.OUT, count=power, after=done)
    return done


def all_reduce(rank: int, size: int) -> Plan:
    """Reduce-scatter by halving, all-gather by doubling: 2 log2(n) rounds, 2(n-1)/n of the data sent.

    Where n is no power of two, folded members and their partners send the whole data once more.
    """
    draft = Draft("all_reduce", "halving_doubling", rank, size, power_of_two_below(size))
    all_reduce_pass(draft, range(size), 0, Space.IN)
    return draft.plan()


def reduce(rank: int, size: int, root: int) -> Plan:
    """Reduce-scatter by halving, then a binomial gather: 2 log2(n) rounds, 2(n-1)/n of the data through the root.

    Ranks are counted from the root. Where n is no power of two, folded members send the whole data once more.
    """
    power = power_of_two_below(size)
    draft = Draft("reduce", "halving_gather", rank, size, power)
    me = (rank - root) % size
    if me >= power:
        draft.send((me - power + root) % size, 0, Space.IN, count=power)
        return draft.plan()
    partial = Space.TMP if me else Space.OUT  # only the root's OUT exists
    source, after = Space.IN, ()  # type: tuple[Space, tuple[int, ...]]
    if me + power < size:
        extra = (me + power + root) % size
        after = (draft.recv_reduce(extra, 0, source, partial, count=power),)
        source = partial
    low, width = 0, power
    while width > 1:
        width //= 2
        keep, give = (low + width, low) if me & width else (low, low + width)
        peer = ((me ^ width) + root) % size
        draft.send(peer, give, source, count=width, after=after)
        after = (draft.recv_reduce(peer, keep, source, partial, count=width, after=after),)
        low, source = keep, partial
    done = [draft.finish(me, partial, after=after)]
    while width < power and not me & width:
        done.append(draft.recv((me + width + root) % size, me + width, partial, count=width))
        width *= 2
    if me:
        draft.send((me - width + root) % size, me, partial, count=width, after=done)
    return draft.plan()
