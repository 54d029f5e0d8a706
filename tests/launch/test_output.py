"""What the launcher shows: whole lines, bars in place, files untouched."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from slipstream.launch.output import Console, RankOutput
from slipstream.launch.wire import ERR, OUT, PREAMBLE, AgentMessages, Spec, SpecRank, message


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def console(out: io.BytesIO, *, prefix: bool = True) -> Console:
    return Console(out, io.BytesIO(), prefix=prefix, timestamps=False)


@given(
    chunks=st.lists(st.tuples(st.integers(0, 2), st.text("ab\n", max_size=6)), max_size=40),
)
def test_lines_are_never_torn(chunks: list[tuple[int, str]]) -> None:
    out = io.BytesIO()
    shared = console(out)
    ranks = [RankOutput(rank, False, shared, None) for rank in range(3)]
    for rank, text in chunks:
        if text:
            ranks[rank].feed(text.encode())
    for one in ranks:
        one.feed(b"")
    for rank in range(3):
        whole = "".join(text for r, text in chunks if r == rank)
        lines = whole.split("\n")
        if not lines[-1]:
            lines.pop()
        shown = [line[4:] for line in out.getvalue().decode().split("\n") if line.startswith(f"[{rank}] ")]
        assert shown == lines


def test_a_bar_in_a_file_keeps_its_carriage_returns() -> None:
    out = io.BytesIO()
    shared = console(out)
    bar, other = RankOutput(0, False, shared, None), RankOutput(1, False, shared, None)
    bar.feed(b"\r10%\r20%")
    bar.feed(b"\r")
    other.feed(b"hello\n")
    bar.feed(b"30%\r\n")
    assert out.getvalue() == b"[0] 10%\r[0] 20%\r\n[1] hello\n[0] 30%\r[0] 30%\n"


def test_a_bar_on_a_terminal_makes_way_for_lines() -> None:
    out = Terminal()
    shared = console(out)
    bar, other = RankOutput(0, False, shared, None), RankOutput(1, False, shared, None)
    bar.feed(b"\r10%")
    assert out.getvalue().endswith(b"10%")
    other.feed(b"hello\n")
    tail = out.getvalue().split(b"hello\n")
    assert tail[0].endswith(b"\r\x1b[2K\x1b[33m[1]\x1b[0m ")
    assert tail[1].endswith(b"10%")


def test_a_line_without_end_is_cut_but_a_long_one_is_not() -> None:
    out = io.BytesIO()
    one = RankOutput(0, False, console(out, prefix=False), None)
    for _ in range(45):
        one.feed(b"x" * 65536)
    one.feed(b"\n" + b"x" * 1_000_000 + b"\n")
    one.feed(b"")
    assert [len(line) for line in out.getvalue().splitlines()] == [1 << 20, 1 << 20, 13 << 16, 1_000_000]


def test_a_long_line_in_small_pieces_is_painted_no_further_than_it_is_seen() -> None:
    out = Terminal()
    one = RankOutput(0, False, console(out), None)
    line = b"\x1b[31m" + b"x" * 65536
    for at in range(0, len(line), 64):
        one.feed(line[at : at + 64])
    assert len(out.getvalue()) < 8 * len(line)  # painted whole, it would be 500 times as long
    one.feed(b"\n")
    assert out.getvalue().endswith(line + b"\n")


def test_the_tail_is_the_last_twenty_lines(tmp_path: Path) -> None:
    one = RankOutput(3, True, console(io.BytesIO()), tmp_path)
    one.feed(b"".join(b"%d\n" % i for i in range(50)) + b"last")
    one.flush()
    assert list(one.tail) == [b"%d" % i for i in range(31, 50)] + [b"last"]
    one.close()
    assert (tmp_path / "rank.3" / "stderr").read_bytes().endswith(b"49\nlast")


@given(cuts=st.lists(st.integers(0, 80), max_size=8), noise=st.binary(max_size=30))
def test_frames_survive_any_cut(cuts: list[int], noise: bytes) -> None:
    sent = [(OUT, 3, b"hello"), (ERR, 0, b""), (OUT, 70000, b"\0" * 9)]
    stream = noise + PREAMBLE + b"".join(message(*one) for one in sent)
    reader, got = AgentMessages(preamble=True), []
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for begin, end in itertools.pairwise(edges):
        got += reader.feed(stream[begin:end])
    assert got == sent
    assert reader.noise == noise


def test_a_spec_travels_unchanged() -> None:
    spec = Spec(["a", "b\udcff"], "/x", {"A": "\udc80"}, True, [SpecRank(1, {"RANK": "1"})])
    assert Spec.unpack(spec.pack()) == spec
