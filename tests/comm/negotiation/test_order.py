"""The locked order, for random schedules on 2 to 8 ranks: one order on all ranks, nothing lost, and no deadlock."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

from comm.negotiation.simulated import JOIN, Call, Request, Simulation
from slipstream.base.dtypes import DType, Op
from slipstream.comm.negotiation.agreement import Agreement, Decision, Sum
from slipstream.comm.negotiation.order import Cycles, LockedOrder, share

F32, SUM = int(DType.F32), int(Op.SUM)


def request(name: str, count: int = 4, facts: str = "") -> Request:
    """Every third name is no sum that may share a buffer. What begins with ~ has none."""
    if name.startswith("~"):
        count = hash_of(name)
    shared = None if hash_of(name) % 3 == 0 else Sum(F32, SUM, count, 4 * count)
    name = "" if name.startswith("~") else name
    return Request("allreduce", name, facts or f"{count} elements", sum=shared)


def hash_of(name: str) -> int:
    return sum(map(ord, name))


def shuffled(rng: random.Random, names: list[str]) -> list[str]:
    """In another order, but for those without a name."""
    order = rng.sample(names, len(names))
    without = iter([name for name in names if name.startswith("~")])
    return [next(without) if name.startswith("~") else name for name in order]


def program(
    rng: random.Random, names: list[str], steps: int, odd: float, blocking: bool, wrong: float = 0.0
) -> list[Call]:
    """Steps of calls of all names, in some order. ``odd``: how often a step is not as the others are.

    ``wrong``: how often a call is not as that of the other ranks.
    """
    order = list(names)
    calls: list[Call] = []
    for _ in range(steps):
        if rng.random() < odd:
            order = shuffled(rng, order)
        for name in order:
            calls.append(("call", request(name, facts="other" if rng.random() < wrong else "")))
            if blocking:
                calls.append(("wait", request(name)))
        if not blocking:
            calls += [("wait", request(name)) for name in rng.sample(order, len(order))]
    return calls


def schedule(rng: random.Random) -> Simulation:
    """Threads of their own names; extra names at moments of each rank's own choice; a rank may end early, and join."""
    ends = rng.random() < 0.3
    size, threads = rng.randint(2, 8), 1 if ends else rng.choice([1, 1, 1, 2, 3])
    steps, odd = rng.randint(3, 12), rng.choice([0.0, 0.0, 0.1, 1.0])
    names = [[f"{thread}/{i}" for i in range(rng.randint(1, 5))] for thread in range(threads)]
    names[0] += [f"~{rng.randint(1, 3)}" for _ in range(rng.choice([0, 0, 1, 2, 5]))]
    if rng.random() < 0.3:  # no names at all
        names[0] = [name for name in names[0] if name.startswith("~")]
    wrong = rng.choice([0.0, 0.0, 0.0, 0.02])
    extra = [] if ends else [f"new {i}" for i in range(rng.choice([0, 0, 1, 3]))]
    programs = []
    for _ in range(size):
        own: list[list[Call]] = []
        for thread in range(threads):
            blocking = odd == 0 and threads == 1 and not extra  # where ranks block in one order
            mine = rng.randint(0, steps) if ends else steps
            own.append(program(rng, names[thread], mine, odd, blocking, wrong))
        for name in extra:
            place = rng.randint(0, len(own[0]))
            own[0].insert(place, ("call", request(name)))
        if ends:
            own[0].append(("call", Request(JOIN, "", "")))
        programs.append(own)
    return Simulation(programs, rng, room=rng.choice([0, 40, 1 << 20]))


def check_results(simulation: Simulation, ends: bool) -> None:
    simulation.check()
    first = simulation.ranks[0].results
    if not ends:
        assert all(rank.results == first for rank in simulation.ranks), (
            "nothing is lost, and nothing mixed up"
        )


def simulate(seeds: range) -> int:
    """How often the order was locked."""
    locks = 0
    for seed in seeds:
        simulation = schedule(random.Random(seed))
        simulation.run()
        check_results(simulation, any(("join", "") in rank.results for rank in simulation.ranks))
        locks += simulation.locks
    return locks


@pytest.mark.parametrize("part", range(2))
def test_some_schedules(part: int) -> None:
    assert simulate(range(300 * part, 300 * (part + 1))) > 50


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_ten_thousand_schedules(part: int) -> None:
    assert simulate(range(2000 * part, 2000 * (part + 1))) > 500


@pytest.mark.parametrize("size", [2, 3, 4, 8, 16, 32, 64])
def test_no_rounds_once_the_order_is_locked(size: int) -> None:
    rng = random.Random(size)
    rounds = []
    for steps in (6, 30):
        programs = [[program(rng, ["a", "b", "c", "d"], steps, 0, blocking=True)] for _ in range(size)]
        simulation = Simulation(programs, rng)
        simulation.run()
        simulation.check()
        assert simulation.locks == 1
        rounds.append(simulation.rounds)
    assert max(rounds) <= 4 * 4 + 1  # three cycles of blocking calls, and the one that shows their end


def test_calls_that_do_not_wait_for_each_other_share_a_buffer() -> None:
    names = [f"x{i}" for i in range(300) if hash_of(f"x{i}") % 3][:100]
    rng = random.Random(1)
    for blocking, wanted in ((False, 10), (True, 101)):
        programs = [[program(rng, names, 20, 0, blocking=blocking)] for _ in range(2)]
        simulation = Simulation(
            programs, rng, impatience=0
        )  # nobody waits for long in the midst of 100 calls
        simulation.run()
        order = simulation.ranks[0].order
        assert order is not None
        assert len(order.batches) <= wanted
        assert all(batch.sum is not None for batch in order.batches)
        assert blocking == (len(order.batches) == len(names))


def test_what_shares_a_buffer_is_alike_and_fits() -> None:
    a, b, c = (Request("allreduce", name, "", sum=Sum(F32, SUM, 4, 16)) for name in "abc")
    other = Request("allreduce", "d", "", sum=Sum(int(DType.F64), SUM, 4, 32))
    alone = Request("allgather", "e", "")
    large = Request("allreduce", "f", "", sum=Sum(F32, SUM, 1 << 20, 4 << 20))

    def lengths(requests: list[Request], room: int, apart: Collection[int] = ()) -> list[int]:
        parts = share(requests, room, apart)
        assert [place for part in parts for place in part] == list(range(len(requests)))
        return [len(part) for part in parts]

    assert lengths([a, b, c], 1 << 20) == [3]
    assert lengths([a, b, c], 32) == [2, 1]
    assert lengths([a, b, c], 1 << 20, apart={1}) == [1, 2]
    assert lengths([a, other, b, c], 1 << 20) == [1, 1, 2]
    assert lengths([a, alone, b, large, c], 16 << 20) == [1, 1, 1, 1, 1]
    assert lengths([a, b], 0) == [1, 1]


def lock(requests: list[Request]) -> LockedOrder:
    cycles = Cycles()
    for _ in range(3):
        for one in requests:
            cycles.note(Decision(one.key, "", one, (0, 0), joined=False))
            assert cycles.locked(1 << 20) is None
    cycles.note(Decision(requests[0].key, "", requests[0], (0, 0), joined=False))
    order = cycles.locked(1 << 20)
    assert order is not None
    return order


def test_an_order_goes_on_where_the_last_round_ended() -> None:
    a, b, c = (Request("allgather", name, "") for name in "abc")
    order = lock([a, b, c])
    assert [order.batch(number).requests for number in range(4)] == [(b,), (c,), (a,), (b,)]


def test_why_an_order_ends_is_told() -> None:
    a, b = (Request("allgather", name, "2 elements") for name in "ab")
    order = lock([a, b])
    assert order.call(Request("allgather", "c", "")) == "called allgather 'c', which is not in the cycle"
    assert (
        order.call(Request("allgather", "a", "3 elements"))
        == "called allgather 'a' with 3 elements, not allgather 'a' with 2 elements"
    )
    assert order.call(a) == ""
    assert order.held() == [a.key]
    assert order.lacks() == "allgather 'b'"
    assert order.deviate("waited")
    assert not order.deviate("once is enough")
    assert order.ready() is None


def test_an_order_that_soon_ends_takes_longer_to_lock_again() -> None:
    cycles = Cycles()
    ones = [Request("allgather", name, "") for name in "ab"]

    def until_locked() -> int:
        for number in range(1000):
            cycles.note(Decision(ones[number % 2].key, "", ones[number % 2], (0,), joined=False))
            if cycles.locked(0) is not None:
                return number
        raise AssertionError

    first = until_locked()
    cycles.unlocked(5)
    second = until_locked()
    cycles.unlocked(1000)
    assert until_locked() == first < second


def test_joined_ranks_count_as_having_called_everything() -> None:
    copies = [Agreement([3, 4], 0) for _ in range(2)]
    join, x = Request(JOIN, "", ""), Request("allreduce", "x", "")
    rooted = Request("broadcast", "y", "from rank 3", needs=3)

    def told(*requests: list[Request | None]) -> list[Decision]:
        messages = [copy.encode(mine) for copy, mine in zip(copies, requests, strict=True)]
        first, second = [copy.decide(messages) for copy in copies]
        assert first == second
        return first

    assert told([join], []) == []
    assert copies[0].anyone_joined
    (decision,) = told([], [x])
    assert decision.joined
    assert not decision.mismatch
    (decision,) = told([], [rooted])
    assert "cannot do without rank 3, which has joined" in decision.mismatch
    assert [one.key for one in told([], [join])] == [(JOIN, "")]
    assert not copies[0].anyone_joined
    assert told([x], []) == []
