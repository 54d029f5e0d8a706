"""Algorithms by name: the ones that come with slipstream, and users' own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.plan import bruck, direct, double_tree, halving_doubling, hierarchical, ring, tree
from slipstream.plan.steps import Draft, Plan, Space

__all__ = ["REDUCING", "ROOTED", "Builder", "algorithms", "build", "collectives", "register"]

# (rank, size, root, hosts) -> the plan of the rank; size is 2 at least
Builder = Callable[[int, int, int, "Sequence[int] | None"], Plan]

REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})

_BUILDERS: dict[str, dict[str, Builder]] = {
    "all_reduce": {
        "direct": lambda rank, size, root, hosts: direct.all_reduce(rank, size),
        "recursive_doubling": lambda rank, size, root, hosts: halving_doubling.recursive_doubling(rank, size),
        "halving_doubling": lambda rank, size, root, hosts: halving_doubling.all_reduce(rank, size),
        "ring": lambda rank, size, root, hosts: ring.all_reduce(rank, size, hosts),
        "bidirectional_ring": lambda rank, size, root, hosts: ring.bidirectional_all_reduce(
            rank, size, hosts
        ),
        "tree": lambda rank, size, root, hosts: tree.all_reduce(rank, size),
        "hierarchical": lambda rank, size, root, hosts: hierarchical.all_reduce(rank, size, hosts),
        "hierarchical_halving": lambda rank, size, root, hosts: hierarchical.all_reduce(
            rank, size, hosts, "halving_doubling"
        ),
    },
    "reduce_scatter": {
        "direct": lambda rank, size, root, hosts: direct.reduce_scatter(rank, size),
        "ring": lambda rank, size, root, hosts: ring.reduce_scatter(rank, size, hosts),
    },
    "all_gather": {
        "direct": lambda rank, size, root, hosts: direct.all_gather(rank, size),
        "ring": lambda rank, size, root, hosts: ring.all_gather(rank, size, hosts),
        "bruck": lambda rank, size, root, hosts: bruck.all_gather(rank, size),
    },
    "broadcast": {
        "direct": lambda rank, size, root, hosts: direct.broadcast(rank, size, root),
        "binomial": lambda rank, size, root, hosts: tree.broadcast(rank, size, root),
        "chain": lambda rank, size, root, hosts: ring.chain_broadcast(rank, size, root, hosts),
        "double_tree": lambda rank, size, root, hosts: double_tree.broadcast(rank, size, root, hosts),
    },
    "reduce": {
        "binomial": lambda rank, size, root, hosts: tree.reduce(rank, size, root),
        "scatter_gather": lambda rank, size, root, hosts: direct.scatter_gather_reduce(rank, size, root),
        "halving_gather": lambda rank, size, root, hosts: halving_doubling.reduce(rank, size, root),
        "chain": lambda rank, size, root, hosts: ring.chain_reduce(rank, size, root, hosts),
        "double_tree": lambda rank, size, root, hosts: double_tree.reduce(rank, size, root, hosts),
    },
    "gather": {"linear": lambda rank, size, root, hosts: direct.gather(rank, size, root)},
    "scatter": {"linear": lambda rank, size, root, hosts: direct.scatter(rank, size, root)},
    "all_to_all": {
        "pairwise": lambda rank, size, root, hosts: direct.all_to_all(rank, size),
        "rounds": lambda rank, size, root, hosts: direct.all_to_all_in_rounds(rank, size),
        "pairwise_in_place": lambda rank, size, root, hosts: direct.all_to_all_in_place(rank, size),
    },
}


def collectives() -> tuple[str, ...]:
    """Return the names of all collectives."""
    return tuple(_BUILDERS)


def algorithms(collective: str) -> tuple[str, ...]:
    """Return the names of the algorithms of ``collective``; ValueError if there is no such collective."""
    return tuple(_of(collective))


def register(collective: str, name: str, builder: Builder) -> None:
    """Add an algorithm of your own; every rank of the job must do the same.

    ``builder(rank, size, root, hosts)`` is a pure function to the plan of one rank, called for two ranks or
    more; ``hosts[r]`` numbers the host of rank r, None if all share one. ``plan.simulate`` and ``plan.order``
    check it. Raises ValueError if the collective is unknown or the name is taken.
    """
    if name in _of(collective):
        raise ValueError(f"{collective} has an algorithm called {name!r} already")
    _BUILDERS[collective][name] = builder


def build(
    collective: str,
    algorithm: str,
    rank: int,
    size: int,
    root: int = 0,
    hosts: Sequence[int] | None = None,
) -> Plan:
    """Return the plan of ``rank`` in a group of ``size``.

    ``root`` is a rank of the group, of interest to rooted collectives; ``hosts[r]`` numbers the host of rank
    r, None if all share one. Raises ValueError for unknown names, ranks out of range, or a topology that the
    algorithm cannot use.
    """
    builder = _of(collective).get(algorithm)
    if builder is None:
        known = ", ".join(algorithms(collective))
        raise ValueError(f"{collective} has no algorithm called {algorithm!r}; it has: {known}")
    if not (0 <= rank < size and 0 <= root < size):
        raise ValueError(f"rank {rank} or root {root} is not in a group of {size}")
    if hosts is not None and len(hosts) != size:
        raise ValueError(f"hosts names {len(hosts)} ranks of {size}")
    return _alone(collective, algorithm) if size == 1 else builder(rank, size, root, hosts)


def _of(collective: str) -> dict[str, Builder]:
    if collective not in _BUILDERS:
        raise ValueError(f"no collective is called {collective!r}; there are: {', '.join(_BUILDERS)}")
    return _BUILDERS[collective]


def _alone(collective: str, algorithm: str) -> Plan:
    draft = Draft(collective, algorithm, 0, 1, 1)
    copied = draft.copy(0, Space.IN, Space.OUT)
    if collective in REDUCING:
        draft.finish(0, Space.OUT, after=(copied,))
    return draft.plan()
