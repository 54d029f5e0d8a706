"""Which operations a later one on the same memory waits for, while threads and signal handlers add others."""

from __future__ import annotations

from slipstream.faces.horovod.memory import InFlight


class Memory:
    """From ``begin`` to ``end``."""

    def __init__(self, begin: int, end: int) -> None:
        self.spans = [(begin, end)]

    def meets(self, other: Memory) -> bool:
        (begin, end), (its_begin, its_end) = self.spans[0], other.spans[0]
        return begin < its_end and its_begin < end


def test_a_long_operation_that_comes_while_a_short_one_is_added_is_found() -> None:
    in_flight: InFlight[str] = InFlight()

    class End(int):
        """Something else comes as its length is looked at."""

        def __sub__(self, other: int) -> int:
            in_flight.add("long", Memory(0, 1000))
            return int(self) - other

    in_flight.add("short", Memory(2000, End(2010)))
    assert in_flight.meeting(Memory(990, 2001)) == ["short", "long"]
    assert in_flight.meeting(Memory(999, 1000)) == ["long"]
    assert in_flight.meeting(Memory(1000, 2000)) == []
    in_flight.drop("long")
    assert in_flight.meeting(Memory(0, 3000)) == ["short"]
